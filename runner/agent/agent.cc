#include "runner/agent/agent.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>
#include <ctime>
#include <utility>

#include "runner/agent/run_history.h"
#include "runner/agent/termination_log.h"
#include "runner/base/cgroup.h"
#include "runner/base/fork.h"
#include "runner/base/one_line.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

// When the workers' beats are read this late, this process itself did not run. Then a worker's silence is judged only
// at the next reading.
constexpr int64_t kLateBeatsNs = 5 * std::chrono::nanoseconds(kBeatsInterval).count();
// Problems of finding the coordinator are reported only after this time, because at the start it may not listen yet.
constexpr std::chrono::seconds kSeekReportDelay{3};
// How long refusals may come from an outdated address: twice the TTL of a DNS record.
constexpr std::chrono::seconds kStaleAddressPatience{60};

// Overloads in one object, for std::visit.
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;  // clang 14 does not deduce it

double seconds_of_ns(int64_t ns) { return std::chrono::duration<double>(std::chrono::nanoseconds(ns)).count(); }

bool is_failure(int code) { return code != 0 && !is_stop(code); }

std::unique_ptr<GpuUseReader> read_use(std::unique_ptr<GpuMonitor> gpus) {
  if (!gpus) return nullptr;
  return std::make_unique<GpuUseReader>(
      [monitor = std::shared_ptr<const GpuMonitor>(std::move(gpus))] { return monitor->use(); });
}

}  // namespace

Agent::Agent(AgentOptions options, std::unique_ptr<GpuMonitor> gpus)
    : options_(std::move(options)),
      gpu_use_(read_use(std::move(gpus))),
      stop_signals_(loop_),
      child_signals_(loop_, SIGCHLD),
      beats_timer_(loop_),
      deadline_timer_(loop_),
      display_timer_(loop_),
      sent_check_timer_(loop_),
      terminal_(options_.terminal, STDOUT_FILENO, STDERR_FILENO),
      workers_(make_ranks()),
      node_(options_.node),
      job_(now(), options_.node.heartbeat_timeout),
      seen_(static_cast<size_t>(options_.node.nproc)),
      first_rank_(options_.node_rank * options_.node.nproc),
      local_workers_(static_cast<size_t>(options_.node.nproc)) {
  status_.job = options_.job;
  status_.job_namespace = options_.job_namespace;
  status_.job_uid = options_.job_uid;
  status_.workload = options_.workload;
  status_.node = options_.node_rank;
  status_.start_time_unix_seconds = std::time(nullptr);
  for (const int signal : options_.program ? options_.program->signals : std::vector<int>{SIGINT, SIGTERM, SIGHUP}) {
    if (signal != SIGHUP || !ignores_hangup()) stop_signals_.add(signal);
  }
  if (is_first()) server_ = make_server();
  if (is_first()) run_folder_ = std::make_unique<RunFolderView>(options_.run_folder);
  link_ = make_link();
}

Status Agent::open() {
  if (server_ && may_have_peers()) TRY(server_->listen(options_.coordinator.port));
  open_control_socket();
  return {};
}

int Agent::run() {
  wait_for_stop_signals();
  wait_for_children();
  arm_display_timer();
  arm_beats_timer();
  if (options_.started_because) on_decision(*options_.started_because);
  handle(Started{});
  loop_.run();  // returns at once when all is over already
  workers_->flush(kReaderPatience);
  terminal_.flush(kReaderPatience);
  LOCKSTEP_CHECK(exit_code_.has_value(), "the loop ends with an exit code");
  return *exit_code_;
}

// ---- signals and children ----

void Agent::wait_for_stop_signals() {
  stop_signals_.async_wait([this](boost::system::error_code error, int signal) {
    if (error) return;
    on_stop_signal(signal);
    wait_for_stop_signals();
  });
}

void Agent::on_stop_signal(int signal) {
  if (signal == SIGINT && ++interrupts_ > 1) {
    workers_->kill_all();
    end(Finish{.code = code_of(ExitCode::kInterrupted), .message = "stopped by a second Ctrl-C"});
    return loop_.stop();
  }
  if (is_first()) print_stopping(signal);
  // Another signal that is to be passed on (torchrun's --signals-to-handle) is passed on as it is.
  const bool is_usual = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  if (!is_usual) workers_->stop_with(signal);
  handle(StopRequested{signal == SIGINT ? SIGINT : SIGTERM});
}

void Agent::print_stopping(int signal) {
  const std::string what =
      options_.program ? "the ranks have " + std::to_string(std::chrono::seconds(options_.node.stop_timeout).count()) +
                             " s to save and end (--stop_timeout)"
                       : "stopping after this step and its checkpoint";
  if (signal == SIGINT) terminal_.err_line("lockstep: " + what + "; Ctrl-C again leaves at once");
  if (signal == SIGHUP) terminal_.err_line("lockstep: the terminal was closed (SIGHUP): " + what);
}

void Agent::wait_for_children() {
  child_signals_.async_wait([this](boost::system::error_code error, int) {
    if (error) return;
    workers_->reap();
    wait_for_children();
  });
}

// ---- workers ----

std::unique_ptr<NodeRanks> Agent::make_ranks() {
  const int ranks = options_.node.nproc;
  if (options_.program) {
    return std::make_unique<ProgramRanks>(loop_, fs_, *options_.program, options_.oom_kill_path, ranks,
                                          worker_handlers());
  }
  return std::make_unique<NodeWorkers>(loop_, options_.worker, options_.oom_kill_path, ranks, worker_handlers());
}

NodeRanks::Handlers Agent::worker_handlers() {
  return {.on_message = [this](int local_rank, const WorkerMessage& message) { on_message(local_rank, message); },
          .on_end = [this](const WorkerEnd& worker_end) { on_worker_end(worker_end); },
          .on_line = [this](int local_rank, bool to_stderr,
                            const std::string& line) { on_line(local_rank, to_stderr, line); },
          .on_unfinished = [this](int local_rank, bool to_stderr,
                                  const std::string& text) { on_unfinished(local_rank, to_stderr, text); },
          .on_note = [this](const std::string& line) { terminal_.err_line("lockstep: " + line); },
          .on_progress =
              [this](int64_t step) {
                durable_step_ = std::max(durable_step_, step);
                handle(ProgramProgressed{});
              },
          .on_figures =
              [this](StepFigures figures) {
                if (run_folder_) run_folder_->add_figures(std::move(figures));
              }};
}

// Of each line of this rank.
std::string Agent::prefix_of(int local_rank) const {
  const int rank = rank_of(local_rank);
  const bool has_template = options_.program && !options_.program->output.prefix.empty();
  if (has_template) return line_prefix(options_.program->output.prefix, options_.program->role, rank, local_rank);
  return rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
}

void Agent::on_line(int local_rank, bool to_stderr, const std::string& line) {
  const std::string text = prefix_of(local_rank) + line;
  to_stderr ? terminal_.err_line(text) : terminal_.out_line(text);
}

void Agent::on_unfinished(int local_rank, bool to_stderr, const std::string& text) {
  terminal_.set_unfinished(2 * local_rank + (to_stderr ? 1 : 0), text.empty() ? text : prefix_of(local_rank) + text);
}

void Agent::on_worker_end(const WorkerEnd& worker_end) {
  const int local_rank = worker_end.local_rank;
  Seen& seen = seen_[static_cast<size_t>(local_rank)];
  const int64_t now_ns = monotonic_ns();
  if (const std::optional<BeatSnapshot> beats = workers_->beats(local_rank)) {
    read_beats(local_rank, *beats, now_ns, false);
    // The time of the failure: for a worker that was killed because it hung its last progress, for one that died its
    // last sign of life.
    const int64_t last_ns = worker_end.killed_by_us ? beats->changed_ns : last_sign_of_life_ns(*beats);
    seen.detection_seconds = last_ns > 0 ? std::max(0.0, seconds_of_ns(now_ns - last_ns)) : -1.0;
  }
  record_worker_end(worker_end);
}

void Agent::record_worker_end(const WorkerEnd& worker_end) {
  const int local_rank = worker_end.local_rank;
  WorkerStatus& status = status_of(local_rank);
  status.state = worker_end.code == 0 ? "done" : "ended";
  if (is_failure(worker_end.code) && !worker_end.killed_by_us) {
    const bool has_words = !worker_end.last_words.empty();
    remember(
        WorkerFailure{.rank = rank_of(local_rank),
                      .node = options_.node_rank,
                      .pid = worker_end.pid,
                      .exit_code = worker_end.code,
                      .reason = exit_reason(worker_end.code),
                      .message = has_words ? worker_end.last_words : "ended with " + describe_exit(worker_end.code),
                      .step = status.step,
                      .generation = generation_,
                      .time_unix_seconds = std::time(nullptr)});
  }
  handle(WorkerEnded{.local_rank = local_rank,
                     .pid = worker_end.pid,
                     .code = worker_end.code,
                     .message = worker_end.last_words,
                     .detection_seconds = seen_[static_cast<size_t>(local_rank)].detection_seconds});
  publish();
}

void Agent::remember(WorkerFailure failure) {
  status_.recent_failures.push_back(std::move(failure));
  if (status_.recent_failures.size() > kRecentFailuresMax) {
    status_.recent_failures.erase(status_.recent_failures.begin());
  }
}

void Agent::on_message(int local_rank, const WorkerMessage& message) {
  if (std::holds_alternative<StoreRequest>(message)) {
    return on_store_request(local_rank, std::get<StoreRequest>(message));
  }
  if (const auto beats = workers_->beats(local_rank)) read_beats(local_rank, *beats, monotonic_ns(), false);
  WorkerStatus& status = status_of(local_rank);
  std::visit(
      Overloaded{
          [&](const Hello& m) {
            status.state = "waiting";
            handle(WorkerHello{local_rank, m.terms});
          },
          [&](const StoreRequest&) {}, [&](const Progress& m) { status_.progress = m; },
          [&](const Evaluation& m) { status_.metrics = m.metrics; },
          [&](const CheckpointWritten& m) {
            status_.last_checkpoint = m;
            durable_step_ = std::max(durable_step_, m.step);
            handle(CheckpointNews{m.step});
          },
          [&](const Metrics& m) { board_.publish_metrics(local_rank, m.families); },
          [&](const Failing&) {},  // kept by workers_
          [&](const Done&) { status.state = "done"; }, [&](const Left& m) { on_left(local_rank, m); },
          [&](const Resumed& m) { on_resumed(local_rank, m); },
          [&](const Outlives&) { handle(WorkerOutlives{local_rank}); }, [&](const Replace&) {},  // kept by workers_
      },
      message);
  // After messages that come several times a second nothing is published before the beats are read again, because node
  // 0's status holds all ranks of the job and takes time to copy.
  const bool is_frequent = std::holds_alternative<StoreRequest>(message) || std::holds_alternative<Progress>(message) ||
                           std::holds_alternative<Metrics>(message);
  if (!is_frequent) publish();
}

void Agent::on_store_request(int local_rank, const StoreRequest& request) {
  if (node_.joined) return link_->send(StoreCall{.local_rank = local_rank, .request = request});
  workers_->answer_store(local_rank, StoreReply{.id = request.id,
                                                .status = StoreStatus::kStale,
                                                .values = {},
                                                .message = "the coordinator is not reachable"});
}

void Agent::on_left(int local_rank, const Left& left) {
  // A worker that lost its peer reports as early as the peer's death shows. Reap first, so that a death on this node is
  // handled before the less informative report.
  workers_->reap();
  if (!workers_->is_alive(local_rank)) return;
  status_of(local_rank).state = "waiting";
  handle(WorkerLeft{.local_rank = local_rank,
                    .generation = left.generation,
                    .cause = left.cause,
                    .message = left.message,
                    .claim = left.claim.value_or(StateClaim{})});
  // A worker that left is assumed to wait for nothing; the next reading of its beats updates that.
  seen_[static_cast<size_t>(local_rank)].in_collective = false;
  seen_[static_cast<size_t>(local_rank)].on_device = false;
}

void Agent::on_resumed(int local_rank, const Resumed& resumed) {
  handle(WorkerResumed{resumed.resumed_step});
  if (!is_first() || local_rank != 0) return;
  if (status_.origin.empty()) status_.origin = one_line(resumed.origin);
  const std::optional<Recovery> recovery = job_.on_resumed(resumed);
  record_in_folder(resumed, recovery);
  if (!recovery) return;
  terminal_.out_line("lockstep: " + describe(*recovery));
  publish();  // what somebody who waits for a recovery is told is in /status, too
  answer_recoveries();
}

// Writes starts and recoveries into the run's folder, so that the page can show them after this agent has ended. The
// page of a program, which has no such folder, begins with its agent.
void Agent::record_in_folder(const Resumed& resumed, const std::optional<Recovery>& recovery) {
  if (!run_folder_) return;
  // When this agent's start was part of a recovery, the recovery's line suffices, unless a new run has begun (step 0).
  const bool is_start = !std::exchange(has_recorded_start_, true) && (!recovery || resumed.resumed_step == 0) &&
                        !options_.run_folder.empty();
  if (is_start) run_folder_->append_recovery(start_line(resumed, status_.world_size, std::time(nullptr)));
  if (recovery) run_folder_->append_recovery(recovery_line(*recovery));
}

// ---- beats ----

void Agent::arm_beats_timer() {
  beats_timer_.expires_after(kBeatsInterval);
  beats_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    read_all_beats();
    arm_beats_timer();
  });
}

void Agent::read_all_beats() {
  terminal_.write_waiting();
  if (const std::string problem = run_folder_ ? run_folder_->new_problem() : ""; !problem.empty()) {
    terminal_.err_line("lockstep: warning: a start or recovery is not recorded in the run's folder: " + problem);
  }
  const int64_t now_ns = monotonic_ns();
  const bool is_late = beats_read_ns_ > 0 && now_ns - beats_read_ns_ > kLateBeatsNs;
  beats_read_ns_ = now_ns;
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    if (!workers_->is_alive(local_rank)) continue;
    if (const auto beats = workers_->beats(local_rank)) read_beats(local_rank, *beats, now_ns, !is_late);
  }
  if (now_ns - heartbeat_ns_ >= std::chrono::nanoseconds(kBeatInterval).count()) {
    heartbeat_ns_ = now_ns;
    send_heartbeat(now_ns);
  }
  publish();
}

void Agent::read_beats(int local_rank, const BeatSnapshot& beats, int64_t now_ns, bool may_judge_silence) {
  Seen& seen = seen_[static_cast<size_t>(local_rank)];
  const WorkerBeat beat = worker_beat(beats, local_rank, now_ns);
  WorkerStatus& status = status_of(local_rank);
  status.pid = workers_->pid(local_rank);  // a program's process is started later than its rank
  status.step = beat.step;
  note_commit(beats);
  status.activity = beat.activity;
  status.phase = beat.phase;
  status.seconds_unchanged = beat.seconds_unchanged;
  if (is_first() && local_rank == 0) job_.on_beats(beats);
  const bool in_collective = is_in_collective(beats);
  const bool on_device = beats.phase == Phase::kDevice;
  // The Hello of a worker is awaited as long as it makes progress in loading; its later progress does not matter there.
  const bool has_progressed = beats.changed_ns != seen.changed_ns && beat.activity == Activity::kLoading;
  const bool waits_otherwise = in_collective != seen.in_collective || on_device != seen.on_device;
  if (beats.step != seen.step || waits_otherwise || has_progressed) {
    seen.step = beats.step;
    seen.in_collective = in_collective;
    seen.on_device = on_device;
    seen.changed_ns = beats.changed_ns;
    handle(WorkerAtStep{.local_rank = local_rank,
                        .step = beats.step,
                        .in_collective = in_collective,
                        .progress_at = TimePoint(std::chrono::nanoseconds(beats.changed_ns)),
                        .on_device = on_device});
  }
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(now_ns - last_sign_of_life_ns(beats)));
  if (!may_judge_silence || beats.alive_ns == 0 || seen.is_reported_silent) return;
  if (since < options_.node.heartbeat_timeout) return;
  seen.is_reported_silent = true;
  handle(WorkerSilent{.local_rank = local_rank, .since = since});
}

void Agent::send_heartbeat(int64_t now_ns) {
  if (!node_.joined) return;
  send_pending_decisions();
  Heartbeat heartbeat;
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    if (!workers_->is_alive(local_rank)) continue;
    if (const auto beats = workers_->beats(local_rank)) {
      heartbeat.workers.push_back(worker_beat(*beats, local_rank, now_ns));
    }
  }
  link_->send(heartbeat);
}

void Agent::note_commit(const BeatSnapshot& beats) {
  const TimePoint at{std::chrono::nanoseconds(beats.committed_ns)};
  const bool is_newer = beats.committed_ns > 0 && (!newest_commit_ || at > newest_commit_->at);
  if (!is_newer) return;
  newest_commit_ = {.step = beats.step, .at = at};
}

std::optional<Commit> Agent::newest_commit() {
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    if (!workers_->is_alive(local_rank)) continue;
    if (const auto beats = workers_->beats(local_rank)) note_commit(*beats);
  }
  return newest_commit_;
}

// ---- the coordinator ----

std::unique_ptr<CoordinatorServer> Agent::make_server() {
  return std::make_unique<CoordinatorServer>(
      loop_, options_.coordinator_options,
      CoordinatorServer::Handlers{
          .on_note = [this](const Note& note) { on_note(note); },
          .on_news = [this](const GroupNews& news) { std::visit([this](const auto& n) { on_news(n); }, news); }});
}

OperatorControl Agent::operator_control() {
  const CoordinatorOptions& options = options_.coordinator_options;
  OperatorControl control;
  control.token = options.token;
  control.min_nodes = options.min_nodes;
  control.max_nodes = options.max_nodes;
  if (server_) {
    control.set_nodes = [this](int nodes) {
      boost::asio::post(loop_, [this, nodes] {
        if (!exit_code_) server_->set_wanted_nodes(nodes);
      });
    };
  } else {
    control.set_coordinator = [this](const boost::asio::ip::address& address) {
      boost::asio::post(loop_, [this, address] {
        if (!exit_code_) link_->ask_also(address);
      });
    };
  }
  return control;
}

std::shared_ptr<CoordinatorLink> Agent::make_link() {
  Greet greet{.job = options_.coordinator_options.job,
              .token = options_.coordinator_options.token,
              .node_rank = options_.node_rank,
              .attempt = options_.coordinator_options.attempt,
              .incarnation = options_.incarnation,
              .host = options_.host};
  CoordinatorLink::Handlers handlers{
      .on_found =
          [this](const Welcome& welcome) {
            handle(CoordinatorFound{welcome, newest_commit()});
          },
      .on_refused = [this](const Refused& refused) { on_refused(refused); },
      .on_message = [this](const CoordinatorMessage& message) { on_coordinator_message(message); },
      .on_lost = [this](const std::string& why) { handle(CoordinatorLost{why}); },
      .on_problem = [this](const std::string& problem) { on_seek_problem(problem); }};
  if (server_) return std::make_shared<LocalCoordinatorLink>(*server_, std::move(greet), std::move(handlers));
  return std::make_shared<TcpCoordinatorLink>(loop_, options_.coordinator, std::move(greet), std::move(handlers));
}

// A pod of another job may have got the address of a lost coordinator while the name still resolves to it. So for a
// node that had found its coordinator before, and for a replacement pod, such a refusal is not final. A refusal of our
// Join is not of this kind, because that coordinator has sent Welcome before.
void Agent::on_refused(Refused refused) {
  const CoordinatorOptions& options = options_.coordinator_options;
  const bool is_replacement = options.attempt > 0 && !is_start_time(options.attempt);
  const bool may_be_stale = !node_.joined && (node_.highest != 0 || (is_replacement && options.dns_ttl.count() > 0));
  const bool is_seeking = node_.seeking_since && now() - *node_.seeking_since < kStaleAddressPatience;
  refused.retry = refused.retry || (may_be_stale && is_seeking);
  handle(CoordinatorRefused{std::move(refused)});
}

void Agent::on_coordinator_message(const CoordinatorMessage& message) {
  if (const auto* const answer = std::get_if<StoreAnswerTo>(&message)) {
    const bool is_ours = answer->local_rank >= 0 && answer->local_rank < nproc();
    if (is_ours) workers_->answer_store(answer->local_rank, answer->reply);
  }
  if (const auto* const news = std::get_if<CheckpointNews>(&message)) {
    durable_step_ = std::max(durable_step_, news->step);
  }
  job_ended_ = job_ended_ || std::holds_alternative<EndJob>(message);
  handle(CoordinatorSent{message});
}

void Agent::on_seek_problem(const std::string& text) {
  const std::string problem = one_line(text);  // it may quote bytes that an unknown program at that address sent
  handle(SearchFailed{problem});
  const bool is_news =
      problem != last_problem_printed_ && node_.seeking_since && now() - *node_.seeking_since >= kSeekReportDelay;
  if (!is_news || exit_code_) return;
  last_problem_printed_ = problem;
  terminal_.err_line("lockstep: looking for the coordinator at " + options_.coordinator.host + ":" +
                     std::to_string(options_.coordinator.port) + ": " + problem);
}

void Agent::on_news(const GroupBroke& broke) {
  // First records the last commits of the group that broke, so that they do not count for the next one.
  if (const auto beats = workers_->beats(0)) job_.on_beats(*beats);
  job_.on_broke(broke, std::time(nullptr));
}

void Agent::on_news(const GroupPlaced& placed) { job_.on_placed(placed); }
void Agent::on_news(const BrokenBefore& before) { job_.on_broken_before(before, now(), std::time(nullptr)); }
void Agent::on_news(const DecidedElsewhere& decided) { count_decision(decided.node, decided.decision); }

void Agent::on_news(const WorkerEndedElsewhere& ended) {
  ++status_.restarts;
  remember(WorkerFailure{.rank = ended.end.rank,
                         .node = ended.node,
                         .pid = 0,
                         .exit_code = ended.end.exit_code,
                         .reason = ended.end.cause,
                         .message = ended.end.message,
                         .step = status_.progress ? status_.progress->step : 0,
                         .generation = ended.end.generation,
                         .time_unix_seconds = std::time(nullptr)});
}

void Agent::on_decision(const RestartDecision& decision) {
  count_decision(options_.node_rank, decision);
  if (is_first()) return;
  pending_decisions_.push_back(decision);
  if (pending_decisions_.size() > kPendingDecisionsMax) pending_decisions_.pop_front();
  send_pending_decisions();
}

void Agent::send_pending_decisions() {
  if (!node_.joined) return;
  for (const RestartDecision& decision : std::exchange(pending_decisions_, {})) link_->send(decision);
}

void Agent::count_decision(int node, const RestartDecision& decision) {
  const bool is_ours = node == options_.node_rank;
  status_.restart_level.level = one_line(decision.level);
  status_.restart_level.last_decision =
      (is_ours ? "" : "node " + std::to_string(node) + ": ") + one_line(decision.line);
  // An agent that gives up ends before its page is scraped, so node 0 counts that; other decisions are counted where
  // they were made, if that node has a page.
  const bool counts = decision.gives_up ? is_first() : is_ours || !decision.is_exported;
  if (!counts) return;
  DecisionCounts& by_kind = decision.gives_up ? gave_up_ : restarts_;
  ++by_kind[{one_line(decision.level), one_line(decision.reason)}];
}

void Agent::on_note(const Note& note) {
  // With a single node the lines about its workers suffice. With several, node 0 prints all notes, the others only
  // warnings.
  if (!may_have_peers() || exit_code_ || (!is_first() && !note.is_warning)) return;
  note.is_warning ? terminal_.err_line("lockstep: " + note.text) : terminal_.out_line("lockstep: " + note.text);
}

// ---- the state machine of this node ----

void Agent::handle(NodeEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(is_handling_, true)) return;
  while (!events_.empty() && !exit_code_) {
    const NodeEvent next = std::move(events_.front());
    events_.pop_front();
    for (const NodeOutput& output : step(node_, next, now())) {
      std::visit([this](const auto& o) { perform(o); }, output);
    }
  }
  is_handling_ = false;
  if (!exit_code_) arm_deadline_timer();
}

void Agent::perform(const SendToCoordinator& output) {
  // The coordinator must know which ranks hold steps when a node leaves, and what a group that broke has done since the
  // last heartbeat: one that broke before its first step is followed by a pause.
  const bool is_leave = std::holds_alternative<Leave>(output.message);
  if (is_leave || std::holds_alternative<Broken>(output.message)) send_heartbeat(monotonic_ns());
  // Sends the decisions first, because the coordinator ignores this node after NodeFailed.
  if (std::holds_alternative<NodeFailed>(output.message)) send_pending_decisions();
  link_->send(output.message);
}

void Agent::perform(const FindCoordinator&) { link_->seek(); }

void Agent::perform(const StartWorker& output) {
  const int local_rank = output.local_rank;
  board_.publish_metrics(local_rank, {});
  seen_[static_cast<size_t>(local_rank)] = Seen{};
  if (const Status started = workers_->start(local_rank); !started.ok()) {
    // Handled like the end of a worker: a program that does not exist ends the job, any other error is retried.
    const bool missing = started.error().code == ErrorCode::kNotFound;
    return record_worker_end(WorkerEnd{.local_rank = local_rank,
                                       .code = static_cast<int>(missing ? ExitCode::kUsage : ExitCode::kCrash),
                                       .last_words = started.error().message});
  }
  status_of(local_rank) = WorkerStatus{
      .rank = rank_of(local_rank), .node = options_.node_rank, .pid = workers_->pid(local_rank), .state = "starting"};
}

void Agent::perform(const Assignment& first) {
  generation_ = first.generation;
  first_rank_ = first.rank;
  status_.world_size = first.world_size;
  status_.nnodes = first.nnodes;
  Assignment assignment = first;
  assignment.node_cores = usable_cores();
  assignment.address = first.nnodes > 1 ? link_->local_address() : "";
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    workers_->send(local_rank, assignment_of(local_rank, assignment));
    WorkerStatus& status = status_of(local_rank);
    status.rank = rank_of(local_rank);
    status.state = "joined";
  }
  publish();
}

void Agent::perform(const CutGroup& output) {
  // The coordinator must know which ranks hold steps that nobody has written, also where all of them were made since
  // the last heartbeat.
  send_heartbeat(monotonic_ns());
  // Node 0's coordinator prints why the group is broken; on every other node its agent does.
  if (!is_first()) {
    terminal_.err_line("lockstep: leaving the group of generation " + std::to_string(counter_of(output.generation)) +
                       " (" + output.cause + "): " + output.message);
  }
  send_to_workers(Cut{output.generation, output.cause});
}

void Agent::perform(const LeaveTogether& output) { send_to_workers(output); }
void Agent::perform(const SignalWorkers& output) { workers_->signal_all(output.signal); }
void Agent::perform(const DumpStacks& output) { workers_->dump_stacks(output.local_rank, rank_of(output.local_rank)); }
void Agent::perform(const KillProcess& output) { workers_->kill(output.local_rank); }

void Agent::perform(const RestartDecision& output) {
  if (!output.gives_up) {
    ++status_.restarts;
    terminal_.err_line("lockstep: " + output.line);
  }
  RestartDecision decision = output;
  decision.is_exported = options_.has_page;
  on_decision(decision);
}

void Agent::perform(const Remark& output) { terminal_.err_line("lockstep: " + output.line); }
void Agent::perform(const Finish& output) { end(output); }

void Agent::send_to_workers(const AgentMessage& message) {
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) workers_->send(local_rank, message);
}

// ---- the end ----

void Agent::end(const Finish& finish) {
  if (exit_code_) return;
  exit_code_ = finish.code;
  terminal_.hide_progress();
  if (finish.code != 0) {
    const std::string code = " (exit code " + std::to_string(finish.code) + ", " + exit_reason(finish.code) + ")";
    terminal_.err_line("lockstep: " + finish.message + (finish.message_names_code ? "" : code));
  }
  if (is_first() && job_.has_committed()) terminal_.out_line(job_.goodput_line(now()));
  write_termination_log(options_.termination_log,
                        Termination{.exit_code = finish.code,
                                    .message = finish.message,
                                    .rank = finish.rank,
                                    .step = finish.step,
                                    .generation = generation_,
                                    .job_ended = job_ended_,
                                    .figures = is_first() ? figures_of(status_) : OrderedJson::object()});
  publish();
  answer_recoveries();
  wait_until_sent();
}

// Waits until all messages are sent. Node 0 leaves last, because the other nodes look for the coordinator until they
// have learned how the job ended.
void Agent::wait_until_sent() {
  if (!send_deadline_) send_deadline_ = now() + kLastWordsTimeout;
  if (has_sent_all()) return loop_.stop();
  sent_check_timer_.expires_after(kSentCheckInterval);
  sent_check_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) wait_until_sent();
  });
}

bool Agent::has_sent_all() const {
  const bool control_is_idle = control_ == nullptr || control_->is_idle();
  if (server_ && server_->state().end) return may_leave(server_->state(), now());
  return (link_->is_idle() && control_is_idle) || now() >= *send_deadline_;
}

// ---- time ----

void Agent::arm_deadline_timer() {
  if (node_.deadline == armed_deadline_) return;
  armed_deadline_ = node_.deadline;
  deadline_timer_.cancel();
  if (!armed_deadline_) return;
  deadline_timer_.expires_at(*armed_deadline_);
  deadline_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    armed_deadline_.reset();
    // Posted, so that if the loop did not run for a while, messages that arrived meanwhile are handled before a
    // deadline counts as missed.
    boost::asio::post(loop_, [this] {
      const bool is_due = node_.deadline && *node_.deadline <= now();
      if (is_due) handle(NodeTick{});
      if (!is_due && !exit_code_) arm_deadline_timer();
    });
  });
}

void Agent::arm_display_timer() {
  if (options_.program ? options_.program->terminal_rank.has_value() : !is_first()) return;
  display_timer_.expires_after(terminal_.interval());
  display_timer_.async_wait([this](boost::system::error_code error) {
    if (error || exit_code_) return;
    if (is_ending()) {
      terminal_.hide_progress();
    } else {
      terminal_.show_progress(is_first() ? std::optional(progress_view()) : std::nullopt, now());
    }
    arm_display_timer();
  });
}

}  // namespace lockstep
