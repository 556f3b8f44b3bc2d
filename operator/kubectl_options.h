// The command line of kubectl-lockstep.
#pragma once

#include <string>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct KubectlOptions {
  std::string command;  // "why", "status", "help"
  std::string job;      // "" with command "status": all jobs
  std::string ns;       // empty: the context's, else default
  bool all_namespaces = false;
  std::string kubeconfig;  // empty: KUBECONFIG, the pod's service account, ~/.kube/config
  std::string context;     // empty: the current one
  std::string server;      // an address without credentials, such as kubectl proxy's; empty: the kubeconfig's
  std::string operator_namespace = "lockstep-system";
  std::string help;  // of command "help": the text
};

// kInvalid: usage, in words.
Result<KubectlOptions> parse_kubectl_options(const std::vector<std::string>& arguments);

}  // namespace lockstep
