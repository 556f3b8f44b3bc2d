// kubectl-lockstep: the kubectl plug-in, `kubectl lockstep why JOB` and the other commands.
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <utility>

#include "operator/diagnose/screen.h"
#include "operator/fact_reader.h"
#include "operator/kubectl_options.h"
#include "operator/manifest/commands.h"
#include "operator/manifest/kubectl.h"
#include "runner/base/build_info.h"
#include "runner/base/environment.h"
#include "runner/config/check_arguments.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace {

using namespace lockstep;

constexpr int kNotWell = 1;
constexpr size_t kWidthDefault = 100;
// Short: a person is waiting at the terminal. Another one that the user gives comes later, and wins.
constexpr const char* kRequestTimeout = "--request-timeout=10s";

int fail(const Error& error, int code) {
  std::fprintf(stderr, "kubectl lockstep: %s\n", error.message.c_str());
  return code;
}

// kubectl with the options that its user has given.
AskKubectl kubectl_with(const KubectlOptions& options, const Environment& environment) {
  return [&options, &environment](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = arguments;
    all.emplace_back(kRequestTimeout);
    all.insert(all.end(), options.of_kubectl.begin(), options.of_kubectl.end());
    return manifest::run_kubectl(all, "", environment);
  };
}

diagnose::ScreenOptions screen_options(const Environment& environment) {
  diagnose::ScreenOptions screen{.width = kWidthDefault, .colours = false, .now = std::time(nullptr)};
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) screen.width = size.ws_col;
  screen.colours = ::isatty(STDOUT_FILENO) == 1 && variable(environment, env::kNoColor).empty() &&
                   variable(environment, env::kTerm) != "dumb";
  return screen;
}

// Those of a namespace; of all when it is empty.
int show_jobs(const AskKubectl& kubectl, const std::string& ns, const diagnose::ScreenOptions& screen) {
  const Result<std::vector<Json>> jobs = read_jobs(kubectl, ns);
  if (!jobs.ok()) return fail(jobs.error(), kNotWell);
  if (jobs->empty()) {
    std::printf("no TrainJobs in %s\n", ns.empty() ? "any namespace" : ("namespace " + ns).c_str());
  } else {
    std::fputs(diagnose::jobs_table(*jobs, ns.empty(), screen.now).c_str(), stdout);
  }
  return 0;
}

int show(const KubectlOptions& options, const Environment& environment) {
  const AskKubectl kubectl = kubectl_with(options, environment);
  const diagnose::ScreenOptions screen = screen_options(environment);
  if (options.job.empty() && options.all_namespaces) return show_jobs(kubectl, "", screen);
  const Result<std::string> ns = options.ns.empty() ? current_namespace(kubectl) : options.ns;
  if (!ns.ok()) return fail(ns.error(), kNotWell);
  if (options.job.empty()) return show_jobs(kubectl, *ns, screen);
  const Result<diagnose::Facts> facts = read_facts(
      kubectl, {.job = {*ns, options.job}, .operator_namespace = options.operator_namespace, .now = screen.now});
  if (!facts.ok()) return fail(facts.error(), kNotWell);
  diagnose::Diagnosis diagnosis = diagnose::diagnose(*facts);
  if (options.command == "status" && facts->job) {
    std::fputs(diagnose::jobs_table({*facts->job}, false, screen.now).c_str(), stdout);
    std::printf("\n%s\n", diagnosis.verdict.c_str());
  } else {
    std::fputs(diagnose::to_screen(diagnosis, screen).c_str(), stdout);
  }
  return diagnosis.is_well ? 0 : kNotWell;
}

// `of_kubectl`: gets kubectl's own options, which its requests have; it outlives the context.
manifest::CommandContext manifest_context(std::vector<std::string>& of_kubectl) {
  return {.program = "kubectl lockstep",
          .in = std::cin,
          .out = std::cout,
          .err = std::cerr,
          .check_args = [](const AgentCommand& command) { return check_arguments(command, all_workload_flags()); },
          .run_kubectl =
              [&of_kubectl](std::vector<std::string> kubectl_arguments, const std::string& input) {
                kubectl_arguments.insert(kubectl_arguments.end(), of_kubectl.begin(), of_kubectl.end());
                return manifest::run_kubectl(kubectl_arguments, input, read_environment());
              },
          // --server is the commands' flag.
          .add_options = [&of_kubectl](CLI::App& app) { add_options_of_kubectl(app, "-s", of_kubectl); }};
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command == "version" || command == "--version") {
    std::printf("kubectl-lockstep %s\n", build_version());
    return 0;
  }
  if (command == "validate" || command == "render") {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    std::vector<std::string> of_kubectl;
    return command == "validate" ? manifest::validate_command(rest, manifest_context(of_kubectl))
                                 : manifest::render_command(rest, manifest_context(of_kubectl));
  }
  const Result<KubectlOptions> options = parse_kubectl_options(arguments);
  if (!options.ok()) return fail(options.error(), code_of(ExitCode::kUsage));
  if (options->command == "help") {
    std::fputs(options->help.c_str(), stdout);
    return 0;
  }
  return show(*options, read_environment());
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return run({argv + 1, argv + argc});
}
