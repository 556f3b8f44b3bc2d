// The command line of kubectl-lockstep.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct KubectlOptions {
  std::string command;  // "why", "status", "help"
  std::string job;      // "" with command "status": all jobs
  std::string ns;       // empty: the context's, else default
  bool all_namespaces = false;
  std::vector<std::string> of_kubectl;  // kubectl's own options, as it takes them: "--context=lab"
  std::string operator_namespace = "lockstep-system";
  std::string help;  // of command "help": the text
};

// kubectl's own options, of which `found` gets what is given. `server`: the names of the one that says the address.
void add_options_of_kubectl(CLI::App& app, const std::string& server, std::vector<std::string>& found);

// kInvalid: usage, in words.
Result<KubectlOptions> parse_kubectl_options(const std::vector<std::string>& arguments);

}  // namespace lockstep
