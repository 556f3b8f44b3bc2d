// How the subcommands of `lockstep` read their words by CLI11.
#pragma once

#include <CLI/App.hpp>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace lockstep {

// Nothing: go on. Else the exit code: --help was answered, or the usage was wrong; then `err` has the app's name, what
// is wrong, and `hint`.
std::optional<int> parse_command(CLI::App& app, const std::vector<std::string>& args, const std::string& hint,
                                 std::ostream& out, std::ostream& err);

}  // namespace lockstep
