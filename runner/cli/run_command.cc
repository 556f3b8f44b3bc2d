#include "runner/cli/run_command.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <utility>

#include "runner/agent/agent.h"
#include "runner/cli/local_devices.h"
#include "runner/config/run_config.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/contract/world.h"

namespace lockstep {
namespace {

constexpr const char* kTerminationLogOfPods = "/dev/termination-log";
constexpr const char* kWorkerName = "lockstep-worker";

Error invalid(std::string message) { return Error{ErrorCode::kInvalid, std::move(message)}; }

int fail(const Error& error) {
  std::fprintf(stderr, "lockstep: %s\n", error.message.c_str());
  return static_cast<int>(ExitCode::kUsage);
}

std::optional<std::string> variable(const Environment& environment, std::string_view name) {
  const auto it = environment.find(std::string(name));
  if (it == environment.end()) return std::nullopt;
  return it->second;
}

bool is_set(const Environment& environment, std::string_view name) {
  return !variable(environment, name).value_or("").empty();
}

Result<std::optional<int>> positive_variable(const Environment& environment, std::string_view name) {
  const std::optional<std::string> text = variable(environment, name);
  if (!text || text->empty()) return std::optional<int>();
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 1) {
    return invalid(std::string(name) + " is \"" + *text + "\", expected an integer of at least 1");
  }
  return std::optional<int>(value);
}

// What contradicts `lockstep run`, which starts the ranks of one machine itself.
Status check_placement(const Environment& environment, const LaunchOptions& launch) {
  if (launch.local_rank) {
    return invalid("--local_rank " + std::to_string(*launch.local_rank) +
                   ": `lockstep run` starts the ranks itself: leave it out, or put `lockstep-worker` in its place "
                   "under a launcher");
  }
  TRY(check_agent_environment(environment, launch));
  TRY_ASSIGN(const std::optional<int> pod_nodes, positive_variable(environment, env::kNumNodes));
  const int nnodes = launch.nnodes.value_or(pod_nodes.value_or(1));
  if (nnodes == 1) return {};
  return invalid((launch.nnodes ? "--nnodes" : std::string(env::kNumNodes)) + " is " + std::to_string(nnodes) +
                 ", but `lockstep run` starts the ranks of one machine: for several, start lockstep-worker on each "
                 "with torchrun --no-python, mpirun or srun");
}

Status check_batch(const RunConfig& config, int nproc) {
  const TrainingOptions& training = config.training;
  if (training.batch_scope != BatchScope::kTotal || training.batch_size >= nproc) return {};
  return invalid("--batch_size " + std::to_string(training.batch_size) + " is smaller than the " +
                 std::to_string(nproc) + " ranks it is shared by: raise it to " + std::to_string(nproc) +
                 " at least, or lower --nproc");
}

Result<std::string> find_worker(const Environment& environment) {
  if (is_set(environment, env::kWorker)) return *variable(environment, env::kWorker);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return invalid("cannot read /proc/self/exe: " + error.message());
  const std::filesystem::path worker = self.parent_path() / kWorkerName;
  if (std::filesystem::exists(worker, error)) return worker.string();
  return invalid("no " + worker.string() + ": " + kWorkerName + " belongs beside lockstep (build it with " +
                 "LOCKSTEP_TORCH=ON), or name it in " + std::string(env::kWorker));
}

// The upper half of the generation.
Result<uint32_t> attempt_of(const Environment& environment) {
  const std::optional<std::string> text = variable(environment, env::kPodAttempt);
  if (!text || text->empty()) return static_cast<uint32_t>(std::time(nullptr));
  uint32_t attempt = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), attempt);
  if (error != std::errc() || end != text->data() + text->size()) {
    return invalid(std::string(env::kPodAttempt) + " is \"" + *text + "\", expected an integer from 0 to 4294967295");
  }
  return attempt;
}

std::string termination_log_of(const Environment& environment) {
  if (is_set(environment, env::kTerminationLog)) return *variable(environment, env::kTerminationLog);
  return std::filesystem::exists(kTerminationLogOfPods) ? kTerminationLogOfPods : "";
}

TerminalOptions terminal_of(const Environment& environment) {
  TerminalEnvironment seen{.stdout_is_a_tty = ::isatty(STDOUT_FILENO) == 1,
                           .no_color = is_set(environment, env::kNoColor),
                           .ci = is_set(environment, env::kCi),
                           .term = variable(environment, env::kTerm).value_or(""),
                           .locale = ""};
  for (const std::string_view name : {env::kLcAll, env::kLcCtype, env::kLang}) {
    if (seen.locale.empty()) seen.locale = variable(environment, name).value_or("");
  }
  return terminal_options(seen);
}

struct Prepared {
  RunConfig config;
  Environment environment;
  LocalRanks ranks;
  AgentOptions agent;
  std::unique_ptr<GpuMonitor> gpus;  // null when none is used
};

Result<Prepared> prepare(const std::vector<std::string>& arguments) {
  Prepared p;
  TRY_ASSIGN(p.config, parse_run_config(arguments));
  p.environment = read_environment();
  const LaunchOptions& launch = p.config.launch;
  TRY(check_placement(p.environment, launch));

  LocalDevices devices;
  p.gpus = GpuMonitor::open(variable(p.environment, env::kCudaVisibleDevices));
  devices.gpus = p.gpus ? p.gpus->count() : 0;
  devices.build_has_cuda = LOCKSTEP_BUILD_HAS_CUDA;
  TRY_ASSIGN(devices.nproc_of_pod, positive_variable(p.environment, env::kNprocPerNode));
  TRY_ASSIGN(p.ranks, plan_local_ranks(launch, devices));
  TRY(check_batch(p.config, p.ranks.nproc));
  if (!p.ranks.uses_gpus) p.gpus.reset();

  AgentOptions& agent = p.agent;
  TRY_ASSIGN(agent.worker.program, find_worker(p.environment));
  agent.worker.arguments = arguments;
  agent.worker.environment = p.environment;
  agent.job = variable(p.environment, env::kJob).value_or(p.config.workload);
  agent.workload = p.config.workload;
  agent.supervisor.nproc = p.ranks.nproc;
  TRY_ASSIGN(agent.supervisor.attempt, attempt_of(p.environment));
  agent.supervisor.max_restarts = launch.max_restarts;
  agent.supervisor.rendezvous_timeout = std::chrono::seconds(launch.rendezvous_timeout_seconds);
  agent.terminal = terminal_of(p.environment);
  agent.termination_log = termination_log_of(p.environment);
  agent.oom_kill_path = OomKillCounter::path_of_own_cgroup();
  return p;
}

// A taken port is an error when it was asked for, or in a pod, where probes and scrapes expect it; on a laptop the
// default port may well be somebody else's.
bool port_is_required(const Prepared& p) {
  const bool given = std::any_of(p.config.flags.begin(), p.config.flags.end(),
                                 [](const FlagValue& flag) { return flag.name == "status_port" && flag.given; });
  return given || is_set(p.environment, env::kKubernetesServiceHost);
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& argument) { return argument == "--help" || argument == "-h"; });
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
  if (asks_for_help(arguments)) {
    const bool names_workload = !arguments.front().starts_with("-");
    std::fputs(run_help(names_workload ? arguments.front() : "").c_str(), stdout);
    return 0;
  }
  Result<Prepared> prepared = prepare(arguments);
  if (!prepared.ok()) return fail(prepared.error());

  // A closed terminal or pipe must not end the run in the middle of a step.
  std::signal(SIGPIPE, SIG_IGN);
  const int port = prepared->config.launch.status_port;
  const bool port_required = port_is_required(*prepared);
  Agent agent(std::move(prepared->agent), std::move(prepared->gpus));
  std::unique_ptr<StatusServer> server;
  std::string port_problem;
  if (port != 0) {
    Result<std::unique_ptr<StatusServer>> started = StatusServer::start(port, agent.board());
    if (!started.ok() && port_required) return fail(started.error());
    if (started.ok()) server = std::move(*started);
    if (!started.ok()) port_problem = started.error().message;
  }

  const LocalRanks& ranks = prepared->ranks;
  std::fprintf(ranks.is_warning ? stderr : stdout, "%s\n", ranks.line.c_str());
  if (!port_problem.empty()) std::fprintf(stderr, "warning: no status page: %s\n", port_problem.c_str());
  std::fflush(nullptr);
  const int code = agent.run();
  // Destroying the server takes up to 2 s; nothing of it outlives the process.
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace lockstep
