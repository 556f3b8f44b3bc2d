#include "operator/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "runner/base/build_info.h"

namespace lockstep {

Result<bool> parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return invalid(std::string(error.what()) + " (" + app.get_name() + " --help)");
    app.exit(error);
    return false;
  }
  return true;
}

Result<std::optional<OperatorOptions>> parse_operator_options(const std::vector<std::string>& arguments) {
  OperatorOptions options;
  CLI::App app("Turns TrainJobs into pods, repairs them, and says why.", "lockstep-operator");
  app.footer("lockstep-operator try FILE creates the TrainJob of a file, reports its result and deletes it.");
  const std::map<std::string, LogLevel> levels{{"debug", LogLevel::kDebug},
                                               {"info", LogLevel::kInfo},
                                               {"warning", LogLevel::kWarning},
                                               {"error", LogLevel::kError}};
  app.set_version_flag("--version", build_version());
  app.add_option("--kubeconfig", options.kubeconfig,
                 "kubeconfig file; without it KUBECONFIG, else the pod's service account, else ~/.kube/config");
  app.add_option("--context", options.context, "context of the kubeconfig; its current one by default");
  app.add_option("--namespace", options.ns, "the only namespace to look after; all by default");
  app.add_option("--operator_namespace", options.operator_namespace,
                 "namespace of the Lease and of the operator's pods; the service account's by default");
  app.add_option("--prometheus_namespace", options.prometheus_namespace,
                 "whose pods may read the metrics of jobs with networkPolicy: IntraJob")
      ->capture_default_str();
  app.add_flag(
      "--fs_group,!--no_fs_group", options.fs_group,
      "give fsGroup 65532 to pods whose template names none; off on OpenShift, which gives each namespace its own");
  app.add_option("--agent_image", options.agent_image,
                 "image of the operator, from which the pods of a program of the user's take the agent that starts it; "
                 "lockstep/operator of this version by default");
  app.add_option("--token_key_file", options.token_key_file, "the Secret's key, 32 random bytes")
      ->capture_default_str();
  app.add_option("--metrics_port", options.metrics_port, "/metrics, /healthz, /readyz")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
  app.add_flag("--leader_elect,!--no_leader_elect", options.leader_elect, "of several replicas one acts, by a Lease");
  app.add_option("--workers", options.workers, "TrainJobs reconciled at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option(
         "--progress_seconds", options.progress_seconds,
         "seconds between two status writes when only a job's progress has changed; it is read every 10 s. At most "
         "120: `kubectl lockstep why` takes a job whose progress is three minutes old for stuck")
      ->capture_default_str()
      ->check(CLI::Range(0, 120));
  app.add_option("--qps", options.qps, "requests per second to the API server")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 100'000.0));
  app.add_option("--burst", options.burst, "requests at once")->capture_default_str()->check(CLI::Range(1, 100'000));
  app.add_option("--log_level", options.log_level, "debug, info, warning, error")
      ->transform(CLI::CheckedTransformer(levels, CLI::ignore_case));
  TRY_ASSIGN(const bool goes_on, parse_arguments(app, arguments));
  return goes_on ? std::optional<OperatorOptions>(std::move(options)) : std::nullopt;
}

}  // namespace lockstep
