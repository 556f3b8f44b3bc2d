// Parses the arguments of a subcommand of `lockstep` with CLI11.
#pragma once

#include <CLI/App.hpp>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/contract/exit_code.h"

namespace lockstep {

// nullopt: continue with the command. Else the exit code: help was printed to `out`, or the usage was wrong, and `err`
// has the app's name, the problem and `hint`.
std::optional<int> parse_command(CLI::App& app, const std::vector<std::string>& args, const std::string& hint,
                                 std::ostream& out, std::ostream& err);

// Writes the message to stderr and returns the exit code.
int fail(const Error& error, ExitCode code = ExitCode::kUsage);

// What is wrong with the word after a command that has these subcommands; empty: it is one of them.
std::string subcommand_problem(const std::string& word, const std::vector<std::string>& names);

}  // namespace lockstep
