#include "operator/kubectl_options.h"

#include <CLI/CLI.hpp>
#include <array>

#include "operator/api/label_text.h"
#include "runner/base/nearest.h"

namespace lockstep {
namespace {

constexpr const char* kHelp = R"(kubectl lockstep - TrainJobs, in words

Usage:
  kubectl lockstep why JOB                 one screen: what happened, which rank, what to do
  kubectl lockstep status [JOB]            how far the jobs are; -A for those of all namespaces
  kubectl lockstep validate -f FILE        say what is wrong with a TrainJob's file, and where
  kubectl lockstep render -f FILE          print the pods that the operator would make of it
  kubectl lockstep version                 say which version this is

Options of why and status:
  -n, --namespace NAMESPACE                default: the context's
  -A, --all-namespaces                     of status: all
      --operator-namespace NAMESPACE       where the operator's Lease lies; default: lockstep-system
      --context, --as, -s/--server, …      what kubectl options lists: passed on to kubectl, which asks the cluster;
                                           validate --server and render --server have them, too (but the address as -s)

why needs the right to get trainjobs; it says more with list on pods and events, and get on pods/log.

Examples:
  kubectl lockstep why sasrec -n team-a
  kubectl lockstep status -A
  watch -n 5 kubectl lockstep status

Exit codes of why and of status JOB: 0 the job is complete or nothing is in its way, 1 something is wrong (or there is
no such job, or no answer), 2 usage.
)";

// Options of kubectl (kubectl options) that say which cluster is asked, as whom, and how.
constexpr std::array<const char*, 17> kOfKubectl = {"--as",
                                                    "--as-group",
                                                    "--as-uid",
                                                    "--as-user-extra",
                                                    "--cache-dir",
                                                    "--certificate-authority",
                                                    "--client-key",
                                                    "--cluster",
                                                    "--client-certificate",
                                                    "--context",
                                                    "--kubeconfig",
                                                    "--password",
                                                    "--token",
                                                    "--request-timeout",
                                                    "--tls-server-name",
                                                    "--user",
                                                    "--username"};
constexpr std::array<const char*, 2> kFlagsOfKubectl = {"--insecure-skip-tls-verify", "--disable-compression"};

}  // namespace

void add_options_of_kubectl(CLI::App& app, const std::string& server, std::vector<std::string>& found) {
  const auto add = [&](const std::string& names, const std::string& name) {
    app.add_option_function<std::vector<std::string>>(names,
                                                      [name, &found](const std::vector<std::string>& values) {
                                                        for (const std::string& value : values)
                                                          found.push_back(name + "=" + value);
                                                      })
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  for (const char* const name : kOfKubectl) add(name, name);
  add(server, "--server");
  for (const char* const name : kFlagsOfKubectl) {
    app.add_flag_function(name, [name, &found](int64_t) { found.emplace_back(name); });
  }
}

Result<KubectlOptions> parse_kubectl_options(const std::vector<std::string>& arguments) {
  KubectlOptions options;
  CLI::App app("", "kubectl lockstep");
  app.set_help_flag("");
  bool wants_help = false;
  app.add_flag("-h,--help", wants_help);
  app.add_option("-n,--namespace", options.ns);
  app.add_flag("-A,--all-namespaces,--all_namespaces", options.all_namespaces);
  add_options_of_kubectl(app, "-s,--server", options.of_kubectl);
  app.add_option("--operator-namespace,--operator_namespace", options.operator_namespace);
  std::vector<std::string> words;
  app.add_option("words", words);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ParseError& error) {
    return invalid(std::string(error.what()) + "; see kubectl lockstep --help");
  }
  if (wants_help || (!words.empty() && words.front() == "help")) {
    options.command = "help";
    options.help = kHelp;
    return options;
  }
  if (words.empty()) return invalid(std::string("no command given\n\n") + kHelp);
  options.command = words.front();
  if (options.command != "why" && options.command != "status") {
    const std::string nearest =
        nearest_name(options.command, {"why", "status", "validate", "render", "version", "help"});
    return invalid("unknown command \"" + options.command + "\"" +
                   (nearest.empty() ? "" : ", did you mean \"" + nearest + "\"?") + "; see kubectl lockstep --help");
  }
  if (words.size() > 2) {
    return invalid(options.command, "unexpected \"" + words[2] + "\"; expected one TrainJob");
  }
  if (words.size() == 2) options.job = words[1];
  // As kubectl writes it: kubectl lockstep why tj/sasrec
  if (const size_t slash = options.job.find('/'); slash != std::string::npos) {
    const std::string kind = options.job.substr(0, slash);
    if (kind != "tj" && kind != "trainjob" && kind != "trainjobs" && kind != "trainjobs.lockstep.dev") {
      return invalid(options.command, "found " + options.job + ", expected a TrainJob's name");
    }
    options.job = options.job.substr(slash + 1);
  }
  if (const std::string expected = api::dns_subdomain_expected(options.job);
      !options.job.empty() && !expected.empty()) {
    return invalid(options.command, "\"" + options.job + "\" cannot be a TrainJob's name: expected " + expected);
  }
  for (const std::string& ns : {options.ns, options.operator_namespace}) {
    const std::string expected = api::dns_label_expected(ns);
    if (!ns.empty() && !expected.empty()) {
      return invalid("\"" + ns + "\" cannot be a namespace's name: expected " + expected);
    }
  }
  if (options.command == "why" && options.job.empty()) {
    return invalid("why: expected the name of a TrainJob (kubectl lockstep status lists them)");
  }
  if (!options.job.empty() && options.all_namespaces) {
    return invalid("-A goes with status of all jobs; name the job's namespace with -n");
  }
  return options;
}

}  // namespace lockstep
