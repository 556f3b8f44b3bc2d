// kubectl-lockstep: the kubectl plug-in, `kubectl lockstep why JOB` and the other commands.
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <utility>

#include "operator/access.h"
#include "operator/diagnose/screen.h"
#include "operator/fact_reader.h"
#include "operator/kube/client.h"
#include "operator/kube/cpprest_transport.h"
#include "operator/kubectl_options.h"
#include "operator/manifest/commands.h"
#include "operator/manifest/kubectl.h"
#include "operator/manifest/rendered_objects.h"
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
// Short: a person is waiting at the terminal.
constexpr std::chrono::milliseconds kRetryFor{2'000};
constexpr std::chrono::milliseconds kRequestTimeout{10'000};

int fail(const Error& error, int code) {
  std::fprintf(stderr, "kubectl lockstep: %s\n", error.message.c_str());
  return code;
}

struct Connection {
  std::unique_ptr<kube::Client> client;
  std::string ns;
};

Result<kube::ServerAccess> access_of(const KubectlOptions& options, const Environment& environment) {
  if (!options.server.empty()) return kube::ServerAccess{.url = options.server, .source = "--server"};
  Result<kube::ServerAccess> access = find_access(options.kubeconfig, options.context, environment);
  if (access.ok()) return kube::with_exec_credential(*std::move(access), environment);
  const bool is_about_user = access.error().message.find(": users[") != std::string::npos;
  if (!is_about_user) return access;
  return invalid(access.error().message +
                 "\nor let kubectl log in for you: kubectl proxy --port=8001 & kubectl lockstep -s "
                 "http://127.0.0.1:8001 -n NAMESPACE why JOB");
}

Result<Connection> connect(const KubectlOptions& options, const Environment& environment) {
  TRY_ASSIGN(const kube::ServerAccess access, access_of(options, environment));
  TRY_ASSIGN(std::shared_ptr<kube::HttpTransport> transport,
             kube::make_cpprest_transport({.url = access.url, .tls = access.tls}));
  Connection connection;
  connection.ns = !options.ns.empty()  ? options.ns
                  : !access.ns.empty() ? access.ns
                                       : std::string(manifest::kDefaultNamespace);
  kube::ClientOptions client = client_options(access, "kubectl-lockstep");
  client.retry_for = kRetryFor;
  client.request_timeout = kRequestTimeout;
  connection.client = std::make_unique<kube::Client>(std::move(transport), std::move(client));
  return connection;
}

diagnose::ScreenOptions screen_options(const Environment& environment) {
  diagnose::ScreenOptions screen{.width = kWidthDefault, .colours = false, .now = std::time(nullptr)};
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) screen.width = size.ws_col;
  screen.colours = ::isatty(STDOUT_FILENO) == 1 && variable(environment, env::kNoColor).empty() &&
                   variable(environment, env::kTerm) != "dumb";
  return screen;
}

int show(const KubectlOptions& options, const Environment& environment) {
  const Result<Connection> connection = connect(options, environment);
  if (!connection.ok()) return fail(connection.error(), code_of(ExitCode::kUsage));
  const diagnose::ScreenOptions screen = screen_options(environment);
  if (options.job.empty()) {
    const std::string ns = options.all_namespaces ? std::string() : connection->ns;
    const Result<std::vector<Json>> jobs = read_jobs(*connection->client, ns);
    if (!jobs.ok()) return fail(jobs.error(), kNotWell);
    if (jobs->empty()) {
      std::printf("no TrainJobs in %s\n", ns.empty() ? "any namespace" : ("namespace " + ns).c_str());
    } else {
      std::fputs(diagnose::jobs_table(*jobs, options.all_namespaces, screen.now).c_str(), stdout);
    }
    return 0;
  }
  const Result<diagnose::Facts> facts = read_facts(
      *connection->client,
      {.job = {connection->ns, options.job}, .operator_namespace = options.operator_namespace, .now = screen.now});
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

manifest::CommandParts manifest_parts() {
  return {.program = "kubectl lockstep",
          .in = std::cin,
          .out = std::cout,
          .err = std::cerr,
          .check_args = [](const manifest::TrainerArgs& of) -> std::optional<manifest::ArgsProblem> {
            const std::optional<ArgumentProblem> problem = check_arguments(
                {.arguments = of.args, .ranks = of.ranks, .environment = of.environment}, all_workload_flags());
            if (!problem) return std::nullopt;
            return manifest::ArgsProblem{problem->index, problem->message, problem->is_of_environment};
          },
          .run_kubectl =
              [](const std::vector<std::string>& kubectl_arguments, const std::string& input) {
                return manifest::run_kubectl(kubectl_arguments, input, read_environment());
              }};
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command == "version" || command == "--version") {
    std::printf("kubectl-lockstep %s\n", build_version());
    return 0;
  }
  if (command == "validate" || command == "render") {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    return command == "validate" ? manifest::validate_command(rest, manifest_parts())
                                 : manifest::render_command(rest, manifest_parts());
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
  const int code = run({argv + 1, argv + argc});
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);  // a normal exit would wait for cpprestsdk's threads and their idle connections
}
