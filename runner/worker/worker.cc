#include "runner/worker/worker.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <sstream>
#include <variant>

#include "runner/base/clock.h"
#include "runner/base/file_system.h"
#include "runner/base/kernel_file.h"
#include "runner/base/parse_number.h"
#include "runner/base/plural.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/dist/link_store.h"
#include "runner/dist/nccl_environment.h"
#include "runner/dist/rendezvous.h"
#include "runner/launch/world.h"
#include "runner/link/agent_session.h"
#include "runner/link/map_beat_page.h"
#include "runner/link/stack_dump.h"
#include "runner/link/stop_signals.h"
#include "runner/loop/device.h"
#include "runner/loop/reporter.h"
#include "runner/loop/trainer.h"
#include "runner/plugin/load_plugin.h"
#include "runner/worker/leave_at_once.h"
#include "runner/worker/own_build.h"

namespace lockstep {
namespace {

// A worker whose device is broken waits for its writes as long as they show progress in this time. (A copy from a
// device that does not answer never ends.)
constexpr std::chrono::seconds kWritesPatience{5};

// Seconds since the kernel started this process, so that the dynamic loader's time counts as start-up.
double seconds_since_process_start() {
  const std::string text = read_kernel_file("/proc/self/stat");
  const auto name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0.0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  constexpr int kStartTimeField = 20;  // proc(5): field 22, counted from the third
  for (int i = 0; i < kStartTimeField; ++i) fields >> field;
  const double started = std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started;
}

std::string nccl_variables(const Environment& environment) {
  std::string list;
  for (const auto& [name, value] : environment) {
    if (name.starts_with("NCCL_")) list += (list.empty() ? "" : " ") + name + "=" + value;
  }
  return list;
}

ExitCode exit_code_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kNotFound:
    case ErrorCode::kConflict:
      return ExitCode::kUsage;
    case ErrorCode::kRetry:
    case ErrorCode::kGone:
      return ExitCode::kPeerLost;
    case ErrorCode::kUnavailable:
      return ExitCode::kDeviceFault;
    default:
      return ExitCode::kCrash;
  }
}

// One worker: its parts, made in this order.
class Worker {
 public:
  // `remark`: about the data set; empty for none.
  Worker(FileSystem& fs, const WorkerInput& input, const Workloads& workloads, RunConfig config, std::string remark)
      : fs_(fs),
        input_(input),
        workloads_(workloads),
        config_(std::move(config)),
        remark_(std::move(remark)),
        clock_(Phase::kStartup,
               std::chrono::steady_clock::now() - std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(seconds_since_process_start()))) {}

  int run() {
    // Torch may throw while the model and the optimizer's moments are made; the agent is to learn why.
    try {
      return run_or_throw();
    } catch (const std::exception& e) {
      return fail(classify_fault(e));
    }
  }

 private:
  int run_or_throw() {
    started_seconds_ = clock_.seconds().total();
    install_stack_dump();
    if (auto failure = find_world()) return fail(*failure);
    if (auto failure = find_job()) return fail(*failure);
    if (auto failure = choose_hardware()) return fail(*failure);
    if (auto failure = load_data()) return fail(*failure);
    if (auto failure = meet_the_agent()) return fail(*failure);
    make_reporter();
    make_trainer();
    Outcome outcome = run_group();
    while (!outcome.wait_reason.empty()) {
      outcome = await_assignment(outcome) ? run_group() : trainer_->stop_between_groups(signals_.requested());
    }
    if (outcome.code == ExitCode::kDone && session_) session_->send(Done{});
    reporter_->send_metrics();
    if (outcome.message.empty()) return static_cast<int>(outcome.code);
    return fail({outcome.code, outcome.message});
  }

  std::optional<Failure> find_world() {
    const std::string fd = variable(input_.environment, env::kAgentFd);
    if (fd.empty()) {
      Result<World> world = derive_world(input_.environment, input_.host_name, config_.launch);
      if (!world.ok()) return usage_failure(world.error().message);
      world_ = *world;
      return std::nullopt;
    }
    const auto descriptor = parse_number<int>(fd);
    const auto local_rank = parse_number<int>(variable(input_.environment, env::kLocalRank));
    if (!descriptor || !local_rank) {
      return Failure{ExitCode::kUsage, "LOCKSTEP_AGENT_FD and LOCAL_RANK must be numbers: they are set by the agent"};
    }
    if (const auto beat_fd = parse_number<int>(variable(input_.environment, env::kBeatFd))) {
      Result<BeatPage*> page = map_beat_page(*beat_fd);
      if (!page.ok()) return usage_failure(page.error().message);
      page_ = *page;
      clock_.show_on(*page_);
    }
    session_ =
        std::make_unique<AgentSession>(*descriptor, *local_rank, *page_, [this] { return signals_.requested() != 0; });
    world_.source = WorldSource::kAgent;
    world_.assignment.local_rank = *local_rank;
    world_.assignment.local_world_size =
        parse_number<int>(variable(input_.environment, env::kLocalWorldSize)).value_or(1);
    return std::nullopt;
  }

  std::optional<Failure> find_job() {
    Result<JobIdentity> job = job_identity(input_.environment);
    if (!job.ok()) return usage_failure(job.error().message);
    job_ = std::move(*job);
    return std::nullopt;
  }

  std::optional<Failure> choose_hardware() {
    Result<at::Device> device = choose_device(config_.launch, world_, gpus_counted());
    if (!device.ok()) return Failure{exit_code_of(device.error()), device.error().message};
    device_ = *device;
    use_device(device_);
    stream_ = make_device_stream(device_);
    Result<GroupBackend> backend = choose_backend(config_.launch, device_);
    if (!backend.ok()) return usage_failure(backend.error().message);
    backend_ = *backend;
    Result<PrecisionChoice> precision = choose_precision(config_.training, device_);
    if (!precision.ok()) return usage_failure(precision.error().message);
    precision_ = *precision;
    return std::nullopt;
  }

  // Done before the ranks meet, so that the group forms when the slowest rank has its data, and no rank waits in a
  // collective for another that still reads.
  std::optional<Failure> load_data() {
    // The ranks of this node share its cores and its memory from now on, and not only when they train.
    config_.launch.nproc = world_.assignment.local_world_size;
    at::set_num_threads(choose_threads(config_.launch, world_));
    WorkloadOrFailure made = workloads_.make(config_, device_, [this](int64_t prepared, int64_t to_prepare) {
      const int64_t before = page_->prepared.exchange(prepared, std::memory_order_relaxed);
      const int64_t all_before = page_->to_prepare.exchange(to_prepare, std::memory_order_relaxed);
      // When the pieces to prepare are counted, only a further piece counts as progress, because reading a file may
      // hang.
      if (to_prepare == 0 || prepared != before || to_prepare != all_before) clock_.progress();
    });
    if (auto* failure = std::get_if<Failure>(&made)) return *failure;
    workload_ = std::move(std::get<std::unique_ptr<Workload>>(made));
    loaded_seconds_ = clock_.seconds().total();
    return std::nullopt;
  }

  // Waits for the first assignment, where there is an agent to give one.
  std::optional<Failure> meet_the_agent() {
    if (!session_) return std::nullopt;
    session_->hello(terms());
    page_->activity.store(Activity::kAwaiting);
    // Until defer_from_now_on() a signal ends the process in its handler (StopSignals).
    const auto received = session_->await_assignment();
    if (!received) return Failure{static_cast<ExitCode>(signals_.requested()), "stopped before the first group"};
    world_.assignment = *received;
    return std::nullopt;
  }

  void make_reporter() {
    threads_ = choose_threads(config_.launch, world_);
    apply_device_settings(config_.training, precision_.precision, threads_);
    folder_ = output_folder(config_, variable(input_.environment, env::kCheckpointDir),
                            variable(input_.environment, env::kJob));
    reporter_ = std::make_unique<Reporter>(
        Reporter::Options{.config = &config_,
                          .assignment = world_.assignment,
                          .agent = session_.get(),
                          .clock = &clock_,
                          .page = page_,
                          .start_unix_time = static_cast<double>(std::time(nullptr)) - clock_.seconds().total(),
                          .device = device_,
                          .precision = precision_.precision,
                          .folder = folder_});
    reporter_->metrics().on_startup(StartupPart::kProcess, started_seconds_);
    reporter_->metrics().on_startup(StartupPart::kLoad, loaded_seconds_);
    if (!remark_.empty()) reporter_->warn(remark_);
    if (device_.is_cpu() && config_.launch.device == DeviceChoice::kAuto) warn_of_the_cpu();
  }

  // Under an agent, which has said what it found, only when this worker's build cannot use the GPUs that it counts.
  void warn_of_the_cpu() {
    const std::string ranks = plural(world_.assignment.world_size, "rank");
    if (!session_) reporter_->warn("no GPU found, training on the CPU with " + ranks);
    if (const int gpus = gpus_counted().value_or(0); session_ && gpus > 0) {
      reporter_->warn("the driver shows " + plural(gpus, "GPU") +
                      ", but this build has no CUDA: training on the CPU with " + ranks);
    }
  }

  [[nodiscard]] std::optional<int> gpus_counted() const {
    return parse_number<int>(variable(input_.environment, env::kGpus));
  }

  void make_trainer() {
    trainer_ = std::make_unique<Trainer>(
        Trainer::Context{.rank = {.config = config_,
                                  .workload = *workload_,
                                  .fs = fs_,
                                  .clock = clock_,
                                  .stream = *stream_,
                                  .device = device_,
                                  .precision = precision_},
                         .reporter = *reporter_,
                         .page = *page_,
                         .stop_code = [this] { return signals_.requested(); },
                         .defer_stops = [this] { signals_.defer_from_now_on(); },
                         .agent = session_.get(),
                         .threads = threads_,
                         .folder = folder_,
                         .locks_folder = variable(input_.environment, env::kPodAttempt).empty(),
                         .host_name = input_.host_name,
                         .job = job_,
                         .resume_command = resume_command(),
                         .launched_by = to_string(world_.source),
                         .nccl_variables = nccl_variables(input_.environment),
                         .on_device_fault = [this](const Failure& fault) { fail(fault); }});
  }

  // Tells the agent that this rank has left its group and keeps its state, and waits for the next group. False when a
  // stop came first.
  bool await_assignment(const Outcome& outcome) {
    clock_.enter(Phase::kWaiting);
    reporter_->beat(trainer_->step(), Activity::kAwaiting);
    reporter_->send_metrics();
    session_->send(Left{.generation = world_.assignment.generation,
                        .cause = outcome.wait_reason,
                        .message = outcome.message,
                        .step = trainer_->step()});
    const auto received = session_->await_assignment();
    clock_.enter(Phase::kOther);
    if (!received) return false;
    world_.assignment = *received;
    reporter_->set_assignment(world_.assignment);
    return true;
  }

  // Forms a group, trains in it, and drops it.
  Outcome run_group() {
    reporter_->beat(trainer_->step(), Activity::kForming);
    if (has_formed_) clock_.enter(Phase::kWaiting);  // what comes before the first group is start-up
    const auto began = clock_.seconds().total();
    const auto abort = std::make_shared<GroupAbort>();
    abort->add_action([this] { trainer_->gate().shut(); });
    const Watch watch(session_.get(), world_.assignment.generation, abort);
    return form_and_train(abort, began);
  }

  // While it lives, a cut of the generation fires the abort. Its destructor ends that, after an exception, too.
  class Watch {
   public:
    Watch(AgentSession* session, uint64_t generation, std::shared_ptr<GroupAbort> abort)
        : session_(session), abort_(std::move(abort)) {
      if (session_ != nullptr) session_->watch(generation, abort_);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch() {
      if (session_ != nullptr) session_->stop_watching();
      abort_->retire();  // the agent-link thread may be about to fire it
    }

   private:
    AgentSession* session_;
    std::shared_ptr<GroupAbort> abort_;
  };

  Outcome form_and_train(const std::shared_ptr<GroupAbort>& abort, double began) {
    Result<StoreHandle> store = open_store();
    if (!store.ok()) return failed(store.error());
    Result<std::unique_ptr<ProcessGroup>> group = form(*store, abort);
    if (!group.ok()) return failed(group.error());
    const double formed = clock_.seconds().total();
    reporter_->metrics().on_rendezvous(formed - began);
    if (!std::exchange(has_formed_, true)) reporter_->metrics().on_startup(StartupPart::kRendezvous, formed);
    return trainer_->run_generation(**group, *store, monotonic_ns());
  }

  Result<StoreHandle> open_store() {
    const auto timeout = std::chrono::seconds(config_.launch.rendezvous_timeout_seconds);
    if (session_) return make_link_store(*session_, world_.assignment.generation, timeout);
    if (world_.assignment.world_size == 1) return make_local_store();
    return open_tcp_store(world_, timeout);
  }

  // Without an agent the ranks also agree on their terms and on a generation.
  Result<std::unique_ptr<ProcessGroup>> form(const StoreHandle& store, const std::shared_ptr<GroupAbort>& abort) {
    Assignment& mine = world_.assignment;
    const bool is_solo = mine.world_size == 1 && config_.launch.backend == BackendChoice::kAuto;
    if (!is_solo) {
      TRY(meet(store, mine, std::chrono::seconds(config_.launch.rendezvous_timeout_seconds)));
      if (!session_) TRY(agree(store, mine, terms()));
    }
    if (!session_) {
      TRY_ASSIGN(mine.generation, agree_on_generation(store));
    }
    const GroupOptions options{.assignment = mine,
                               .backend = backend_,
                               .device = device_,
                               .timeout = std::chrono::seconds(config_.launch.collective_timeout_seconds),
                               .network_interface = variable(input_.environment, env::kGlooInterface),
                               .has_formed_before = has_formed_,
                               .abort = abort};
    if (is_solo) return ProcessGroup::solo(options);
    return ProcessGroup::form(store, options);
  }

  // The values that must be the same on all ranks (contract/agreement.h).
  [[nodiscard]] std::string terms() const {
    const WorkerBuild build = own_build();
    Json terms = config_.shared_flags();
    terms.update(workload_->shared_facts());  // another data set under the same name
    for (const FrozenInput& frozen : workload_->frozen()) terms["sha256 of " + frozen.name] = frozen.sha256;
    terms["backend in effect"] = to_string(backend_);  // `auto` may find a GPU here and none there
    terms["precision in effect"] = to_string(precision_.precision);
    terms["version of lockstep"] = build.version;
    terms["version of torch"] = build.torch;
    terms["version of CUDA"] = build.cuda;
    terms["version of NCCL"] = build.nccl;
    return dump_line(terms);
  }

  // Without an agent the start time of rank 0 is the attempt.
  Result<uint64_t> agree_on_generation(const StoreHandle& store) {
    const auto mine = static_cast<uint64_t>(std::time(nullptr)) << 32;
    TRY_ASSIGN(const std::string of_rank_zero,
               broadcast_from_rank_zero(store, world_.assignment, "generation", std::to_string(mine)));
    return parse_number<uint64_t>(of_rank_zero).value_or(0);
  }

  // A group could not be formed: with an agent this rank waits for the next one.
  [[nodiscard]] Outcome failed(const Error& error) const {
    const ExitCode code = exit_code_of(error);
    const bool was_cut = session_ && session_->was_cut(world_.assignment.generation);
    // In a group that was cut, NCCL reports errors that otherwise mean a broken device.
    const bool is_lost = code == ExitCode::kPeerLost || (was_cut && code == ExitCode::kDeviceFault);
    if (!session_ || !is_lost) return {code, error.message, {}};
    return {ExitCode::kPeerLost, error.message, was_cut ? kLeftCut : exit_reason(code_of(ExitCode::kPeerLost))};
  }

  [[nodiscard]] std::string resume_command() const {
    if (!session_) return {};  // only the launcher knows its own command line
    const std::string given = variable(input_.environment, env::kCommandLine);
    return given.empty() ? resume_command_of(input_.arguments) : given;
  }

  // Logs why this worker ends and returns its exit code; with a broken device it ends the process instead.
  int fail(const Failure& failure) {
    report(failure);
    if (failure.code == ExitCode::kDeviceFault) {
      if (trainer_) trainer_->wait_for_writes(kWritesPatience);
      leave_at_once(failure.code);
    }
    return static_cast<int>(failure.code);
  }

  void report(const Failure& failure) {
    if (session_) {
      session_->send(Failing{.code = static_cast<int>(failure.code),
                             .message = failure.message,
                             .rank = world_.assignment.rank,
                             .step = trainer_ ? trainer_->step() : 0,
                             .generation = world_.assignment.generation});
    } else {
      std::fprintf(stderr, "error: rank %d: %s\n", world_.assignment.rank, failure.message.c_str());
    }
  }

  FileSystem& fs_;
  const WorkerInput& input_;
  const Workloads& workloads_;
  RunConfig config_;
  const std::string remark_;
  PhaseClock clock_;
  double started_seconds_ = 0.0;  // seconds from the process's start until main() ran with all libraries loaded
  double loaded_seconds_ = 0.0;   // seconds from the process's start until the data was read
  bool has_formed_ = false;
  StopSignals signals_;
  BeatPage own_page_;  // stands in for the agent's page when there is no agent; nobody reads it
  BeatPage* page_ = &own_page_;
  JobIdentity job_;
  World world_;
  std::unique_ptr<AgentSession> session_;
  const UncaughtDeviceFaults uncaught_{[this](const Failure& failure) { report(failure); }};
  at::Device device_ = at::Device(at::kCPU);
  std::unique_ptr<DeviceStream> stream_;
  GroupBackend backend_ = GroupBackend::kGloo;
  PrecisionChoice precision_;
  int threads_ = 1;
  std::string folder_;
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

int run_worker(FileSystem& fs, const WorkerInput& input) {
  set_nccl_environment(input.environment);
  const auto refuse = [](const std::string& message, ExitCode code) {
    std::fprintf(stderr, "error: %s\n", message.c_str());
    return static_cast<int>(code);
  };
  try {  // a plugin's flags may throw, too
    const Result<Workloads> workloads = Workloads::load(fs, input.arguments);
    if (!workloads.ok()) return refuse(workloads.error().message, ExitCode::kUsage);
    if (wants_help(input.arguments)) {
      std::fputs(run_help(input.arguments.front(), workloads->flags()).c_str(), stdout);
      return 0;
    }
    const Result<RunConfig> config = parse_run_config(input.arguments, workloads->flags());
    if (!config.ok()) return refuse(config.error().message, ExitCode::kUsage);
    // With an agent only a plugin's flags remain to be settled; the agent settled all others before it started this
    // worker.
    Result<SettledRun> run = settled_run(fs, *config, input.arguments, workloads->flags());
    if (!run.ok()) return refuse(run.error().message, ExitCode::kData);
    return Worker(fs, input, *workloads, std::move(run->config), std::move(run->remark)).run();
  } catch (const std::exception& e) {
    const Failure fault = classify_fault(e);
    return refuse(fault.message, fault.code);
  } catch (...) {
    return refuse("the flags of --plugin threw something that is no std::exception", ExitCode::kUsage);
  }
}

}  // namespace lockstep
