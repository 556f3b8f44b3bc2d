#include "runner/cli/agent_start.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <utility>

#include "runner/agent/agent.h"
#include "runner/agent/rank_files.h"
#include "runner/base/cgroup.h"
#include "runner/base/plural.h"
#include "runner/cli/find_worker.h"
#include "runner/cli/local_devices.h"
#include "runner/cli/local_nodes.h"
#include "runner/cli/node_number.h"
#include "runner/cli/parse_command.h"
#include "runner/config/run_config.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/launch/world.h"

namespace lockstep {
namespace {

constexpr const char* kTerminationLogOfPods = "/dev/termination-log";
// How long a DNS server may still return the record of a pod that is gone.
constexpr std::chrono::seconds kDnsTtl{30};

bool is_set(const Environment& environment, std::string_view name) { return !variable(environment, name).empty(); }

Result<std::optional<int>> positive_variable(const Environment& environment, std::string_view name) {
  const std::string text = variable(environment, name);
  if (text.empty()) return std::optional<int>();
  const std::optional<int64_t> value = parse_number(text);
  if (!value || *value < 1 || !std::in_range<int>(*value)) {
    return invalid(std::string(name) + " is \"" + text + "\", expected an integer of at least 1");
  }
  return std::optional(static_cast<int>(*value));
}

// CUDA_VISIBLE_DEVICES that is empty allows no GPU; without it all are allowed.
std::unique_ptr<GpuMonitor> open_gpu_monitor(const Environment& environment) {
  const auto visible = environment.find(std::string(env::kCudaVisibleDevices));
  return GpuMonitor::open(visible == environment.end() ? std::nullopt : std::optional(visible->second));
}

// Refuses flags and variables that contradict `lockstep run` and `lockstep launch`, which start the ranks of a machine
// themselves.
Status check_placement(const Environment& environment, const LaunchOptions& launch, bool starts_program) {
  if (launch.local_rank) {
    return invalid("--local_rank " + std::to_string(*launch.local_rank) + ": `lockstep " +
                   (starts_program ? "launch` starts the ranks itself: leave it out"
                                   : "run` starts the ranks itself: leave it out, or put `lockstep-worker` in its "
                                     "place under a launcher"));
  }
  return check_agent_environment(environment, launch, starts_program);
}

// Every rank of the largest group that may form needs at least one sample.
Status check_batch(const RunConfig& config, int nproc, int nnodes) {
  const TrainingOptions& training = config.training;
  const int64_t ranks = int64_t{nproc} * nnodes;
  if (training.batch_scope != BatchScope::kTotal || training.batch_size >= ranks) return {};
  return invalid("--batch_size " + std::to_string(training.batch_size) + " is smaller than the " +
                 std::to_string(ranks) + " ranks it is shared by: raise it to " + std::to_string(ranks) +
                 " at least, or lower " + (nnodes == 1 ? "--nproc" : "--nproc or --nnodes"));
}

// The attempt, which is the upper half of the generation.
Result<uint32_t> attempt_of(const Environment& environment) {
  const std::string text = variable(environment, env::kPodAttempt);
  if (text.empty()) return static_cast<uint32_t>(std::time(nullptr));
  const std::optional<int64_t> attempt = parse_number(text);
  if (!attempt || !std::in_range<uint32_t>(*attempt)) {
    return invalid(std::string(env::kPodAttempt) + " is \"" + text + "\", expected an integer from 0 to 4294967295");
  }
  return static_cast<uint32_t>(*attempt);
}

// The restart decision from the environment. Our own parent wrote it, so a value that cannot be parsed is ignored.
std::optional<RestartDecision> started_because(const Environment& environment) {
  const Result<NodeMessage> message = decode_node_message(variable(environment, env::kStartedBecause));
  const auto* const decision = message.ok() ? std::get_if<RestartDecision>(&*message) : nullptr;
  return decision == nullptr ? std::nullopt : std::optional(*decision);
}

std::string termination_log_of(const Environment& environment) {
  if (std::string path = variable(environment, env::kTerminationLog); !path.empty()) return path;
  return std::filesystem::exists(kTerminationLogOfPods) ? kTerminationLogOfPods : "";
}

TerminalOptions terminal_of(const Environment& environment) {
  TerminalEnvironment seen{.stdout_is_a_tty = ::isatty(STDOUT_FILENO) == 1,
                           .no_color = is_set(environment, env::kNoColor),
                           .ci = is_set(environment, env::kCi),
                           .term = variable(environment, env::kTerm),
                           .locale = ""};
  for (const std::string_view name : {env::kLcAll, env::kLcCtype, env::kLang}) {
    if (seen.locale.empty()) seen.locale = variable(environment, name);
  }
  return terminal_options(seen);
}

uint64_t random_number() {
  std::random_device device;
  return (uint64_t{device()} << 32U) | device();
}

bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

// The nodes of --local_nodes share one; the program that started them says which.
std::string control_folder_of_program(const Environment& environment) {
  if (std::string folder = variable(environment, env::kControlFolder); !folder.empty()) return folder;
  const std::string runs = program_runs_folder();
  return runs.empty() ? "" : runs + "/" + std::to_string(::getpid());
}

struct Prepared {
  RunConfig config;
  Environment environment;
  AgentPosition position;
  LocalRanks ranks;
  AgentOptions agent;
  std::unique_ptr<GpuMonitor> gpus;  // null when no GPU is used
};

// spec.elastic, spec.health and spec.trainer of a TrainJob reach the pod as variables; the command line wins over them.
Status apply_job_defaults(RunConfig& config, const Environment& environment) {
  const struct {
    std::string_view flag;
    std::string_view name;
    int& seconds;
  } timeouts[] = {{"rejoin_timeout_seconds", env::kRejoinTimeout, config.launch.rejoin_timeout_seconds},
                  {"stall_timeout_seconds", env::kStallTimeout, config.launch.stall_timeout_seconds}};
  for (const auto& timeout : timeouts) {
    TRY_ASSIGN(const std::optional<int> seconds, positive_variable(environment, timeout.name));
    if (seconds && !is_given(config, timeout.flag)) timeout.seconds = *seconds;
  }
  TRY_ASSIGN(const std::optional<int> port, positive_variable(environment, env::kStatusPort));
  if (port && !is_given(config, "status_port")) config.launch.status_port = *port;
  return {};
}

// How long a stop may take. Without a flag read from the environment, because it depends on who sends SIGTERM (the
// pod's grace period). torchrun's variable counts for programs.
Result<std::chrono::seconds> stop_timeout_of(const Environment& environment, const LaunchOptions& launch,
                                             bool is_program) {
  if (launch.stop_timeout_seconds) return std::chrono::seconds(*launch.stop_timeout_seconds);
  TRY_ASSIGN(std::optional<int> seconds, positive_variable(environment, env::kStopTimeout));
  if (!seconds && is_program) {
    TRY_ASSIGN(seconds, positive_variable(environment, env::kTorchShutdownTimeout));
  }
  return seconds ? std::chrono::seconds(*seconds) : kStopGrace;
}

Status set_membership(Prepared& p) {
  const LaunchOptions& launch = p.config.launch;
  AgentOptions& agent = p.agent;
  agent.node_rank = p.position.node_rank;
  agent.coordinator = {.host = p.position.coordinator_host, .port = p.position.coordinator_port};
  agent.host = read_host_name();
  agent.incarnation = random_number();
  CoordinatorOptions& coordinator = agent.coordinator_options;
  coordinator.job = agent.job;
  coordinator.token = variable(p.environment, env::kToken);
  TRY_ASSIGN(coordinator.attempt, attempt_of(p.environment));
  // With --recover the number stays: a framework has computed its schedules, and its part of the data, from it.
  const bool is_fixed = agent.program && agent.program->recovers;
  coordinator.min_nodes = is_fixed ? p.position.wanted_nodes : p.position.min_nodes;
  coordinator.max_nodes = p.position.max_nodes;
  coordinator.wanted_nodes = p.position.wanted_nodes;
  coordinator.rejoin_timeout = std::chrono::seconds(launch.rejoin_timeout_seconds);
  const std::chrono::milliseconds rendezvous_timeout = std::chrono::seconds(launch.rendezvous_timeout_seconds);
  coordinator.heartbeat_timeout = std::chrono::seconds(launch.heartbeat_timeout_seconds);
  // When a worker does not start in time, its own node's agent should give up first, because its message is more
  // precise. So the coordinator waits a little longer.
  coordinator.rendezvous_timeout = rendezvous_timeout + coordinator.heartbeat_timeout;
  coordinator.stall_timeout = std::chrono::seconds(launch.stall_timeout_seconds);
  const bool is_found_by_name = !p.position.coordinator_host.empty() && !is_address(p.position.coordinator_host);
  if (p.position.distributed() && is_found_by_name) coordinator.dns_ttl = kDnsTtl;
  agent.node.nproc = p.ranks.nproc;
  agent.node.max_restarts = launch.max_restarts;
  agent.node.rendezvous_timeout = rendezvous_timeout;
  agent.node.heartbeat_timeout = coordinator.heartbeat_timeout;
  TRY_ASSIGN(agent.node.stop_timeout, stop_timeout_of(p.environment, launch, agent.program.has_value()));
  return {};
}

// Where nothing says which node this is, node 0's agent does, if it is known where that is.
Status find_node_rank_of(Prepared& p) {
  LaunchOptions& launch = p.config.launch;
  if (launch.node_rank || launch.coordinator.empty()) return {};
  if (derive_agent_position(p.environment, read_host_name(), launch).ok()) return {};
  LaunchOptions as_second = launch;
  as_second.node_rank = 1;
  const Result<AgentPosition> position = derive_agent_position(p.environment, read_host_name(), as_second);
  if (!position.ok()) return {};  // something else is wrong, too
  Greet greet{.job = p.agent.job,
              .token = variable(p.environment, env::kToken),
              .node_rank = kAnyNode,
              .attempt = 0,
              .incarnation = random_number(),
              .host = read_host_name()};
  TRY_ASSIGN(launch.node_rank, find_node_number(position->coordinator_host, position->coordinator_port, greet,
                                                std::chrono::seconds(launch.rendezvous_timeout_seconds)));
  return {};
}

Result<Prepared> prepare(AgentRequest request) {
  Prepared p;
  p.config = std::move(request.config);
  p.environment = std::move(request.environment);
  TRY(apply_job_defaults(p.config, p.environment));
  const LaunchOptions& launch = p.config.launch;
  TRY(check_placement(p.environment, launch, request.program.has_value()));
  p.agent.job = is_set(p.environment, env::kJob) ? variable(p.environment, env::kJob) : p.config.workload;
  if (request.program) TRY(find_node_rank_of(p));
  TRY_ASSIGN(p.position, derive_agent_position(p.environment, read_host_name(), launch));

  LocalDevices devices;
  p.gpus = open_gpu_monitor(p.environment);
  devices.gpus = p.gpus ? p.gpus->count() : 0;
  devices.build_has_cuda = LOCKSTEP_BUILD_HAS_CUDA;
  TRY_ASSIGN(devices.nproc_of_pod, positive_variable(p.environment, env::kNprocPerNode));
  devices.nccl_shares_gpus = variable(p.environment, kNcclSharesGpus) == "1";
  if (request.program) {
    p.ranks = describe_program_ranks(launch.nproc.value_or(devices.nproc_of_pod.value_or(1)), devices.gpus);
  } else {
    TRY_ASSIGN(p.ranks, plan_local_ranks(launch, devices));
    TRY(check_batch(p.config, p.ranks.nproc, p.position.max_nodes));
  }
  if (!p.ranks.uses_gpus) p.gpus.reset();

  AgentOptions& agent = p.agent;
  if (request.program) {
    agent.program = std::move(request.program);
    agent.program->max_restarts = launch.max_restarts;
    agent.program->master_port = launch.master_port;
    // Rank 0 runs on node 0 as long as that is not lost.
    if (agent.program->local_address.empty() && p.position.node_rank == 0) {
      agent.program->local_address = launch.master_addr;
    }
    agent.program->checkpoint_folder = variable(p.environment, env::kCheckpointDir);
    agent.node.ranks_keep_state = false;
    agent.node.restarts_are_total = is_given(p.config, "max_restarts");
    agent.coordinator_options.ranks_keep_state = false;
  } else {
    TRY_ASSIGN(agent.worker.program, find_worker(p.environment));
    agent.worker.arguments = std::move(request.arguments);
    agent.worker.environment = p.environment;
    agent.worker.environment[std::string(env::kGpus)] = std::to_string(p.ranks.uses_gpus ? devices.gpus : 0);
    agent.worker.environment[std::string(env::kLocalWorldSize)] = std::to_string(p.ranks.nproc);
  }
  agent.job_namespace = variable(p.environment, env::kNamespace);
  agent.job_uid = variable(p.environment, env::kJobUid);
  agent.workload = p.config.workload;
  TRY(set_membership(p));
  agent.terminal = terminal_of(p.environment);
  agent.termination_log = termination_log_of(p.environment);
  agent.oom_kill_path = OomKillCounter::path_of_own_cgroup();
  agent.has_page = p.config.launch.status_port != 0;
  agent.started_because = started_because(p.environment);
  if (!agent.program) {
    agent.run_folder =
        output_folder(p.config, variable(p.environment, env::kCheckpointDir), variable(p.environment, env::kJob));
  }
  // No control socket in a pod: kubectl exec gives access there, and several jobs may share the folder.
  if (!is_set(p.environment, env::kKubernetesServiceHost)) {
    agent.control_folder = agent.program ? control_folder_of_program(p.environment) : agent.run_folder;
  }
  return p;
}

// A taken port is an error when --status_port was given, and in a pod, where probes and Prometheus expect it. On a
// laptop another program may use the default port, and the run goes on without the page.
bool port_is_required(const Prepared& p) {
  return is_given(p.config, "status_port") || is_set(p.environment, env::kKubernetesServiceHost);
}

// What to do where a port cannot be had: in a TrainJob's pod a flag would move the agent away from its probe and from
// the operator.
std::string port_advice(const Environment& environment, const char* trainjob_field, const char* flags) {
  const std::string job = variable(environment, env::kJob);
  if (job.empty() || !is_set(environment, env::kKubernetesServiceHost)) return flags;
  return std::string("set spec.trainer.") + trainjob_field + " of TrainJob " + job +
         " to a port that is free in its pods and, with hostNetwork, on their nodes";
}

// Node 0 prints for the whole job; the others print only problems.
void print_start(const Prepared& p) {
  const bool is_first = p.position.node_rank == 0;
  if (p.ranks.is_warning || is_first) std::fprintf(p.ranks.is_warning ? stderr : stdout, "%s\n", p.ranks.line.c_str());
  if (!is_first || !p.position.distributed()) return;
  const std::string wanted = p.position.min_nodes == p.position.max_nodes
                                 ? std::to_string(p.position.max_nodes)
                                 : std::to_string(p.position.min_nodes) + " to " + std::to_string(p.position.max_nodes);
  std::printf("%s nodes; this one's agent listens for the others on port %d\n", wanted.c_str(),
              p.position.coordinator_port);
  if (is_set(p.environment, env::kToken)) return;
  std::fprintf(stderr,
               "warning: %s is not set: whoever reaches port %d can join this job; set it to the same secret on all "
               "nodes\n",
               std::string(env::kToken).c_str(), p.position.coordinator_port);
}

void print_remark(const std::string& remark) {
  if (remark.empty()) return;
  std::fprintf(stderr, "%s\n", remark.c_str());
  std::fflush(nullptr);
}

// Returns an exit code when the agent could not begin. When the agent has ended, it ends the process and does not
// return.
int run_agent(Prepared prepared) {
  // A closed pipe must not end the run in the middle of a step. A closed terminal sends SIGHUP, which stops it in
  // order.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that is as large as `ulimit -f` allows
  const int port = prepared.config.launch.status_port;
  const bool port_required = port_is_required(prepared);
  const std::string status_advice =
      port_advice(prepared.environment, "statusPort",
                  "choose another one with --status_port N, or go without with --status_port 0");
  const std::string coordinator_advice =
      port_advice(prepared.environment, "coordinatorPort",
                  "choose another one with --coordinator HOST:PORT, the same on all nodes");
  Agent agent(std::move(prepared.agent), std::move(prepared.gpus));
  if (const Status opened = agent.open(); !opened.ok()) {
    return fail(Error{opened.error().code, opened.error().message + "; " + coordinator_advice});
  }
  std::unique_ptr<StatusServer> server;
  std::string port_problem;
  if (port != 0) {
    Result<std::unique_ptr<StatusServer>> started =
        StatusServer::start(port, agent.board(), agent.run_folder(), agent.operator_control());
    if (started.ok()) server = std::move(*started);
    if (!started.ok()) {
      port_problem = started.error().message + ": " + status_advice;
      if (port_required) return fail(Error{started.error().code, port_problem});
      agent.go_without_page();
    }
  }

  print_start(prepared);
  if (!port_problem.empty()) std::fprintf(stderr, "warning: no status page: %s\n", port_problem.c_str());
  std::fflush(nullptr);
  const int code = agent.run();
  // The status server need not be closed. The control socket must be, because its file would remain.
  agent.close();
  std::fflush(nullptr);
  std::_Exit(code);
}

// The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.
std::vector<std::string> visible_gpu_names(const Environment& environment, int count) {
  std::vector<std::string> names;
  std::istringstream list(variable(environment, env::kCudaVisibleDevices));
  for (std::string name; std::getline(list, name, ',') && std::ssize(names) < count;) names.push_back(name);
  for (int i = static_cast<int>(names.size()); i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

// Checks here once what every agent would check, so that an error is printed once.
Result<LocalNodesOptions> prepare_local_nodes(AgentRequest request) {
  RunConfig& config = request.config;
  Environment& environment = request.environment;
  LocalNodesOptions nodes;
  nodes.command_line = variable(environment, env::kCommandLine);
  if (nodes.command_line.empty()) nodes.command_line = resume_command_of(request.arguments);
  nodes.arguments = request.arguments;
  if (request.program) nodes.program = request.program->words;
  nodes.environment = environment;
  const LaunchOptions launch = config.launch;
  nodes.nodes = *launch.local_nodes;
  nodes.min_nodes = launch.min_nodes.value_or(nodes.nodes);
  const std::unique_ptr<GpuMonitor> gpus = open_gpu_monitor(environment);
  const int gpu_count =
      gpus && (request.program || LOCKSTEP_BUILD_HAS_CUDA) && launch.device != DeviceChoice::kCpu ? gpus->count() : 0;
  if (!config.launch.nproc && gpu_count > 0) config.launch.nproc = std::max(1, gpu_count / nodes.nodes);
  config.launch.nnodes = nodes.nodes;
  config.launch.min_nodes = nodes.min_nodes;
  config.launch.node_rank = 0;
  for (const std::string_view name :
       {env::kNodeRank, env::kNumNodes, env::kMinNodes, env::kMaxNodes, env::kJobCompletionIndex}) {
    environment.erase(std::string(name));
  }
  TRY_ASSIGN(const Prepared first, prepare(std::move(request)));
  nodes.nproc = first.ranks.nproc;
  if (first.ranks.uses_gpus && nodes.nproc * nodes.nodes > gpu_count && !first.ranks.may_share_gpus) {
    return invalid("--local_nodes " + std::to_string(nodes.nodes) + " with " + std::to_string(nodes.nproc) +
                   " ranks each are more than the " + std::to_string(gpu_count) +
                   " GPUs visible: lower one of them, share GPUs with --backend gloo, or use --device cpu");
  }
  if (first.ranks.uses_gpus) nodes.gpus = visible_gpu_names(nodes.environment, gpu_count);
  if (first.ranks.is_warning) nodes.warning = first.ranks.line;
  nodes.cores = usable_cores();
  nodes.share_cores = launch.threads == 0;
  nodes.status_port = launch.status_port;
  nodes.status_port_given = is_given(first.config, "status_port");
  nodes.max_restarts = launch.max_restarts;
  nodes.heartbeat_timeout = std::chrono::seconds(launch.heartbeat_timeout_seconds);
  nodes.stop_timeout = first.agent.node.stop_timeout;
  nodes.termination_log = first.agent.termination_log;
  nodes.control_folder = first.agent.control_folder;
  nodes.run_folder = first.agent.run_folder;
  nodes.terminal = first.agent.terminal;
  return nodes;
}

int run_on_local_nodes(FileSystem& fs, AgentRequest request) {
  const std::string remark = request.remark;
  const Result<LocalNodesOptions> options = prepare_local_nodes(std::move(request));
  if (!options.ok()) return fail(options.error());
  print_remark(remark);
  return run_local_nodes(fs, *options);
}

// Of the ranks' output; its name is new for each agent.
Status make_log_folder(Prepared& p) {
  if (!p.agent.program || !p.agent.program->output.writes_files()) return {};
  ProgramCommand& program = *p.agent.program;
  TRY_ASSIGN(program.log_folder, RankFiles::make_folder(program.output.log_dir, program.run_id));
  std::printf("the output of the ranks: %s/attempt_N/LOCAL_RANK/{stdout,stderr}.log\n", program.log_folder.c_str());
  return {};
}

}  // namespace

int count_visible_gpus(const Environment& environment) {
  const std::unique_ptr<GpuMonitor> gpus = open_gpu_monitor(environment);
  return gpus ? gpus->count() : 0;
}

int start_agent_of(FileSystem& fs, AgentRequest request) {
  if (request.config.launch.local_nodes) return run_on_local_nodes(fs, std::move(request));
  const std::string remark = request.remark;
  Result<Prepared> prepared = prepare(std::move(request));
  if (!prepared.ok()) {
    const bool lacks_gpus = prepared.error().code == ErrorCode::kUnavailable;
    return fail(prepared.error(), lacks_gpus ? ExitCode::kDeviceFault : ExitCode::kUsage);
  }
  if (prepared->position.node_rank == 0) print_remark(remark);
  if (const Status made = make_log_folder(*prepared); !made.ok()) return fail(made.error());
  return run_agent(std::move(*prepared));
}

}  // namespace lockstep
