// The operator's command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/base/log.h"
#include "runner/base/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace lockstep {

// False: --help or --version was answered. kInvalid: usage, in words.
Result<bool> parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

struct OperatorOptions {
  std::string kubeconfig;          // empty: --context, KUBECONFIG, the pod's service account, ~/.kube/config
  std::string context;             // of the kubeconfig; empty: its current one
  std::string ns;                  // empty: all namespaces
  std::string operator_namespace;  // where the Lease lies; empty: that of the access, or lockstep-system
  std::string prometheus_namespace = "monitoring";  // whose pods networkPolicy: IntraJob lets read the metrics
  bool fs_group = true;                             // Settings::sets_fs_group
  std::string agent_image;                          // Settings::agent_image; empty: its default
  std::string token_key_file = "/etc/lockstep/token-key/key";
  int metrics_port = 8080;
  bool leader_elect = true;
  int workers = 32;
  int progress_seconds = 30;  // between two writes of a job's figures, when nothing else has changed
  double qps = 500.0;
  int burst = 1000;
  LogLevel log_level = LogLevel::kInfo;
};

// nullopt: --help or --version was answered; leave with 0. kInvalid: usage, in words.
Result<std::optional<OperatorOptions>> parse_operator_options(const std::vector<std::string>& arguments);

}  // namespace lockstep
