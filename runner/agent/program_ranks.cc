#include "runner/agent/program_ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "runner/agent/thread_states.h"
#include "runner/base/build_info.h"
#include "runner/base/clock.h"
#include "runner/base/fd.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/contract/metric_families.h"

namespace lockstep {
namespace {

constexpr const char* kMasterKey = "program/master";
constexpr const char* kEndedKey = "program/ended/";
constexpr std::chrono::hours kAsLongAsItTakes{24 * 365};
// The first step of a new group is looked for this often, so that the time of a recovery is exact.
constexpr std::chrono::milliseconds kFirstStepPollInterval{10};
constexpr std::chrono::milliseconds kProgressInterval{1000};
constexpr std::chrono::milliseconds kStackPrintTime{500};
// A start that makes steps for this long is progress, also where nothing tells whether it has saved them.
constexpr std::chrono::minutes kLongEnough{10};
// How long processes that a rank has left may take to end after SIGKILL, and how often that is looked at.
constexpr std::chrono::seconds kOrphansGrace{10};
constexpr std::chrono::milliseconds kOrphansPollInterval{2};
// How long a rank's end is not told while another one, which failed before it, is on its way out.
constexpr std::chrono::seconds kFirstFailureGrace{2};
constexpr size_t kRateWindow = 10;       // looks over which the steps per second are taken
const int kStackSignal = SIGRTMIN + 10;  // as in python/rank_start.py
// The nodes of a job run one kind of program. More need not agree: torchrun does not compare scripts, either.
constexpr const char* kTerms = R"({"kind":"program"})";

// A port that nobody listens on now. Rank 0 binds it a moment later.
Result<int> free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  const bool ok = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const std::string why = ok ? "" : std::strerror(errno);
  if (fd >= 0) ::close(fd);
  if (!ok) return Error{ErrorCode::kUnavailable, "no free port for rank 0's store: " + why};
  return static_cast<int>(ntohs(address.sin_port));
}

// Whether somebody listens at this port of this machine.
bool is_taken(int port) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;  // a port that was used a moment ago is free
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return fd.get() >= 0 && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
         errno == EADDRINUSE;
}

// Nothing but the step is known of a program that says nothing.
Progress progress_at(int64_t step) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  return {.step = step,
          .total_steps = 0,
          .epoch = 0,
          .num_epochs = 0,
          .loss = kUnknown,
          .lr = kUnknown,
          .grad_norm = kUnknown,
          .samples_per_second = kUnknown,
          .eta_seconds = -1.0,
          .data_wait_ratio = kUnknown,
          .device_memory_bytes = -1};
}

double seconds_from(int64_t begin_ns, int64_t end_ns) {
  return std::chrono::duration<double>(std::chrono::nanoseconds(end_ns - begin_ns)).count();
}

struct FdPair {
  Fd agent;
  Fd rank;
};
Result<FdPair> make_link() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return Error{ErrorCode::kUnavailable, std::string("cannot make a socket pair: ") + std::strerror(errno)};
  }
  return FdPair{.agent = Fd(fds[0]), .rank = Fd(fds[1])};
}

struct Pipe {
  Fd read_end;
  Fd write_end;
};
Result<Pipe> make_output_pipe() {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) {
    return Error{ErrorCode::kUnavailable, std::string("cannot make a pipe: ") + std::strerror(errno)};
  }
  return Pipe{.read_end = Fd(fds[0]), .write_end = Fd(fds[1])};
}

// What rank 0 knows of the whole run.
void set_run_metrics(const Progress& progress, MetricFamilies& families) {
  const auto set_if_known = [&](const MetricName& name, double value) {
    if (std::isfinite(value) && value >= 0) families.set(name, value);
  };
  if (progress.total_steps > 0) {
    families.set(metric::kTargetSteps, static_cast<double>(progress.total_steps));
    families.set(metric::kProgress, static_cast<double>(progress.step) / static_cast<double>(progress.total_steps));
  }
  set_if_known(metric::kEstimatedRemaining, progress.eta_seconds);
  if (std::isfinite(progress.loss)) families.set(metric::kLoss, progress.loss, {{"split", "train"}});
  set_if_known(metric::kLearningRate, progress.lr);
  set_if_known(metric::kGradientNorm, progress.grad_norm);
  set_if_known(metric::kSamplesPerSecond, progress.samples_per_second);
}

}  // namespace

ProgramRanks::ProgramRanks(boost::asio::io_context& loop, FileSystem& fs, ProgramCommand command,
                           std::string oom_kill_path, int nproc, Handlers handlers)
    : loop_(loop),
      fs_(fs),
      command_(std::move(command)),
      oom_kills_(std::move(oom_kill_path)),
      handlers_(std::move(handlers)),
      output_(loop, fs, command_.output, command_.log_folder, nproc,
              {.on_line = handlers_.on_line, .on_unfinished = handlers_.on_unfinished, .on_note = handlers_.on_note}),
      kept_progress_(command_.checkpoint_folder),
      ranks_(static_cast<size_t>(nproc)),
      step_timer_(loop) {
  if (Result<ProgramFolder> made = ProgramFolder::make(fs_); made.ok()) {
    folder_.emplace(std::move(*made));
    open_progress_server();
  } else {
    handlers_.on_note(made.error().message + "; without one a program's progress reports are not heard");
  }
  // Forked ranks become children of this process when the one between them and the zygote has ended.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

ProgramRanks::~ProgramRanks() = default;

// Of the newest process of this local rank; empty when there is no folder for it.
std::string ProgramRanks::error_file(int local_rank) const {
  if (std::string among_the_output = output_.error_file(local_rank); !among_the_output.empty()) return among_the_output;
  return folder_ ? folder_->error_file(local_rank) : "";
}

Environment ProgramRanks::environment_of(int local_rank) {
  Environment environment = rank_environment(command_, *at(local_rank).assignment, *master_);
  const std::string path = at(local_rank).error_file = error_file(local_rank);
  if (!path.empty()) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    environment["TORCHELASTIC_ERROR_FILE"] = path;
  }
  if (progress_server_) progress_server_->add_variables(environment);
  return environment;
}

// ---- what a worker would say ----

void ProgramRanks::report(int local_rank, WorkerMessage message) {
  boost::asio::post(loop_, [this, local_rank, message = std::move(message)] {
    if (is_alive(local_rank)) handlers_.on_message(local_rank, message);
  });
}

void ProgramRanks::report_end(WorkerEnd end) {
  Rank& rank = at(end.local_rank);
  close_link(rank);
  rank.state = State::kNone;
  rank.kill_timer.reset();
  boost::asio::post(loop_, [this, end = std::move(end)] { handlers_.on_end(end); });
}

void ProgramRanks::ask_store(StoreOp op, std::vector<std::string> keys, std::vector<std::string> values) {
  handlers_.on_message(0, StoreRequest{.id = ++next_request_,
                                       .generation = generation_,
                                       .op = op,
                                       .keys = std::move(keys),
                                       .values = std::move(values),
                                       .timeout = kAsLongAsItTakes});
}

Status ProgramRanks::start(int local_rank) {
  TRY(begin_anew(at(local_rank)));
  report(local_rank, Hello{.local_rank = local_rank, .pid = ::getpid(), .terms = kTerms});
  return {};
}

Status ProgramRanks::begin_anew(Rank& rank) {
  close_link(rank);
  const std::optional<BeatPageMapping> earlier = std::move(rank.page);
  rank = Rank{};
  rank.state = State::kAwaiting;
  TRY_ASSIGN(BeatPageMapping page, BeatPageMapping::create(earlier ? &*earlier : nullptr));
  rank.page.emplace(std::move(page));
  rank.page->set_activity(Activity::kAwaiting, Phase::kWaiting);
  return {};
}

void ProgramRanks::send(int local_rank, const AgentMessage& message) {
  if (!is_alive(local_rank)) return;
  Rank& rank = at(local_rank);
  const bool speaks = rank.outlives && rank.state == State::kRunning;
  if (const auto* const assignment = std::get_if<Assignment>(&message)) {
    on_assignment(local_rank, *assignment);
  } else if (const auto* const cut = std::get_if<Cut>(&message)) {
    if (rank.assignment && cut->generation == generation_) {
      if (cut->cause == exit_reason(code_of(ExitCode::kTimeout))) dump_stacks(local_rank, rank.assignment->rank);
      if (speaks && rank.stop_code != 0) return end_process(local_rank, stop_signal_);  // it was to leave before
      if (speaks) {
        rank.left_as = kLeftCut;  // should it end by itself before it hears of this
        return rank.link->send(encode(message));
      }
      end_for_group(local_rank, kLeftCut, kProgramCutGrace);
    }
  } else if (const auto* const leave = std::get_if<LeaveTogether>(&message)) {
    if (leave->leaving_code != 0) rank.stop_code = leave->leaving_code;
    if (speaks && rank.leaves_together) {
      rank.link->send(encode(message));
    } else if (leave->leaving_code != 0) {
      end_process(local_rank, stop_signal_);
    } else if (speaks) {
      // It loses nothing when its group ends in the middle of a step.
      rank.link->send(encode(AgentMessage(Cut{.generation = leave->generation, .cause = kLeftRegroup})));
    } else {
      end_for_group(local_rank, kLeftRegroup, kProgramCutGrace);
    }
  }
}

// ---- starting ----

void ProgramRanks::on_assignment(int local_rank, const Assignment& assignment) {
  Rank& rank = at(local_rank);
  rank.assignment = assignment;
  rank.has_printed_stacks = false;
  rank.left_as = "";
  generation_ = assignment.generation;
  if (rank.outlives && rank.state == State::kRunning) rank.link->send(encode(AgentMessage(assignment)));
  if (local_rank < nproc() - 1) return;  // the agent sends all of them, in order
  master_.reset();
  master_request_.reset();
  finished_request_.reset();
  boost::asio::post(loop_, [this, generation = generation_] {
    const bool was_cut = !at(0).assignment;  // by a message that came with the assignment
    if (generation == generation_ && !was_cut) seek_master();
  });
}

// Node 0 chooses where rank 0's store listens, and says so in the group's store.
void ProgramRanks::seek_master() {
  const Assignment& first = *at(0).assignment;
  if (first.rank == 0) {
    const Result<int> port = command_.master_port ? Result<int>(*command_.master_port) : free_port();
    if (!port.ok()) return fail_to_start(0, port.error());
    const bool is_started = at(0).state == State::kAwaiting;  // else it keeps its state, and needs no port
    if (command_.master_port && is_started && is_taken(*port)) {
      // Later it may be what an earlier start has left, and is free again in a moment.
      return fail_to_start(0, Error{restart_count(first) == 0 ? ErrorCode::kInvalid : ErrorCode::kUnavailable,
                                    "port " + std::to_string(*port) +
                                        " (--master_port) is taken on this machine: give another one, or leave "
                                        "--master_port out, and each start takes a free one"});
    }
    const std::string near = first.address.empty() ? "127.0.0.1" : first.address;
    const std::string host = command_.local_address.empty() ? near : command_.local_address;
    if (first.nnodes > 1) ask_store(StoreOp::kSet, {kMasterKey}, {host + " " + std::to_string(*port)});
    master_ = {.host = host, .port = *port};
    return start_programs();
  }
  ask_store(StoreOp::kGet, {kMasterKey}, {});
  master_request_ = next_request_;
}

void ProgramRanks::answer_store(int local_rank, const StoreReply& reply) {
  if (reply.id < kOwnRequests) {
    Rank& rank = at(local_rank);
    if (rank.link && rank.open_requests.erase(reply.id) > 0) rank.link->send(encode(AgentMessage(reply)));
    return;
  }
  if (master_request_ == reply.id) {
    master_request_.reset();
    if (reply.status == StoreStatus::kOk && reply.values.size() == 1) on_master(reply.values.front());
  } else if (finished_request_ == reply.id) {
    finished_request_.reset();
    if (reply.status == StoreStatus::kOk) on_all_finished();
  }
}

void ProgramRanks::on_master(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return;
  master_ = {.host = text.substr(0, space), .port = std::atoi(text.c_str() + space + 1)};
  start_programs();
}

void ProgramRanks::start_programs() {
  std::vector<int> to_start;
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    const Rank& rank = at(local_rank);
    const bool waits = rank.state == State::kAwaiting && rank.assignment && !rank.is_cut;
    if (waits) to_start.push_back(local_rank);
    if (!waits && !(rank.outlives && rank.state == State::kRunning)) return;  // the group has ended meanwhile
  }
  if (to_start.empty()) return;
  formed_ns_ = monotonic_ns();
  output_.begin_start(restart_count(*at(0).assignment));
  if (to_start.front() == 0) {
    reported_.reset();
    steps_before_ = 0;
    recent_steps_.clear();
  }
  if (command_.uses_zygote && !zygote_failed_ && python_command(command_.words)) {
    Status forked;
    for (auto first = to_start.begin(); first != to_start.end() && forked.ok();) {
      const auto end = first + std::min(std::ssize(to_start), static_cast<ptrdiff_t>(kRanksPerRequest));
      forked = fork_programs({first, end});
      first = end;
    }
    if (forked.ok()) return schedule_step_poll();
    handlers_.on_note("the program is started without a zygote: " + forked.error().message);
    zygote_failed_ = true;
  }
  for (const int local_rank : to_start) {
    if (at(local_rank).state != State::kAwaiting) continue;
    if (const Status started = exec_program(local_rank); !started.ok()) fail_to_start(local_rank, started.error());
  }
  schedule_step_poll();
}

Status ProgramRanks::exec_program(int local_rank) {
  Rank& rank = at(local_rank);
  const bool has_terminal = command_.terminal_rank == local_rank;
  Environment environment = environment_of(local_rank);
  if (folder_) {
    std::string& path = environment["PYTHONPATH"];
    path = folder_->start_folder() + (path.empty() ? "" : ":" + path);
  }
  TRY_ASSIGN(const SpawnedWorker spawned, spawn_program(command_.words, std::move(environment), rank.page->fd(),
                                                        {.has_link = true, .has_terminal = has_terminal}));
  adopt_link(local_rank, spawned.link_fd);
  rank.page->close_fd();
  rank.pid = spawned.pid;
  rank.state = State::kRunning;
  rank.page->set_activity(Activity::kTraining, Phase::kOther);
  if (!has_terminal) output_.take(local_rank, spawned.stdout_fd, spawned.stderr_fd);
  return {};
}

Status ProgramRanks::fork_programs(const std::vector<int>& local_ranks) {
  const std::optional<PythonCommand> python = python_command(command_.words);
  TRY_ASSIGN(Zygote* const parked, zygote(*python));
  std::vector<ForkedRank> forked;
  std::vector<Pipe> outs;
  std::vector<Pipe> errs;
  std::vector<FdPair> links;
  for (const int local_rank : local_ranks) {
    TRY_ASSIGN(Pipe out, make_output_pipe());
    TRY_ASSIGN(Pipe err, make_output_pipe());
    TRY_ASSIGN(FdPair link, make_link());
    Environment environment = environment_of(local_rank);
    environment.erase(std::string(env::kToken));
    forked.push_back({.environment = std::move(environment),
                      .stdout_fd = out.write_end.get(),
                      .stderr_fd = err.write_end.get(),
                      .beat_fd = at(local_rank).page->fd(),
                      .link_fd = link.rank.get()});
    outs.push_back(std::move(out));
    errs.push_back(std::move(err));
    links.push_back(std::move(link));
  }
  TRY(parked->fork(forked));
  for (size_t i = 0; i < local_ranks.size(); ++i) {
    const int local_rank = local_ranks[i];
    at(local_rank).state = State::kForking;
    output_.take(local_rank, outs[i].read_end.release(), errs[i].read_end.release());
    adopt_link(local_rank, links[i].agent.release());
  }
  fork_requests_.push_back(local_ranks);
  return {};
}

Result<Zygote*> ProgramRanks::zygote(const PythonCommand& python) {
  if (zygote_) return zygote_.get();
  ZygoteCommand command = zygote_command(command_, python, nproc());
  if (folder_) {
    if (command.memory.empty()) command.memory = folder_->path() + "/memory.json";
    command.package_folder = folder_->package_folder();
    command.start_folder = folder_->start_folder();
  }
  TRY_ASSIGN(zygote_,
             Zygote::start(loop_, command,
                           {.on_forked = [this](const std::vector<pid_t>& pids) { on_forked(pids); },
                            .on_end = [this](const std::string& why) { on_zygote_end(why); },
                            .on_line = [this](const std::string& line) { handlers_.on_note("zygote: " + line); }}));
  return zygote_.get();
}

void ProgramRanks::on_forked(const std::vector<pid_t>& pids) {
  if (fork_requests_.empty()) return;
  const std::vector<int> asked = std::move(fork_requests_.front());
  fork_requests_.pop_front();
  for (size_t i = 0; i < asked.size(); ++i) {
    const int local_rank = asked[i];
    Rank& rank = at(local_rank);
    if (i >= pids.size()) {
      handlers_.on_note("rank " + std::to_string(rank.assignment->rank) +
                        " is started from the beginning: the zygote could not fork it, for lack of memory or of "
                        "processes (ulimit -u)");
      start_instead_of_fork(local_rank);
      continue;
    }
    rank.pid = pids[i];
    rank.state = State::kRunning;
    rank.page->close_fd();
    rank.page->set_activity(Activity::kTraining, Phase::kOther);
    if (rank.pending_signal != 0) ::kill(-rank.pid, rank.pending_signal);
    if (const auto end = unknown_ends_.find(rank.pid); end != unknown_ends_.end()) {
      const int wait_status = end->second;
      unknown_ends_.erase(end);
      on_process_end(local_rank, wait_status);
    }
  }
}

// Ranks that it has forked live on. Those that it was asked for are started by exec.
void ProgramRanks::on_zygote_end(const std::string& why) {
  handlers_.on_note("no rank is forked any more, each is started from the beginning: " + why);
  zygote_failed_ = true;
  zygote_.reset();
  for (const std::vector<int>& asked : std::exchange(fork_requests_, {})) {
    for (const int local_rank : asked) start_instead_of_fork(local_rank);
  }
}

void ProgramRanks::start_instead_of_fork(int local_rank) {
  Rank& rank = at(local_rank);
  if (rank.state != State::kForking) return;
  output_.finish(local_rank);
  close_link(rank);
  rank.state = State::kAwaiting;
  if (rank.is_cut) {
    leave(local_rank);
  } else if (rank.pending_signal != 0) {
    end_process(local_rank, rank.pending_signal);
  } else if (const Status started = exec_program(local_rank); !started.ok()) {
    fail_to_start(local_rank, started.error());
  }
}

void ProgramRanks::fail_to_start(int local_rank, const Error& error) {
  const bool is_missing = error.code == ErrorCode::kNotFound || error.code == ErrorCode::kInvalid;
  report_end(WorkerEnd{.local_rank = local_rank,
                       .code = code_of(is_missing ? ExitCode::kUsage : ExitCode::kCrash),
                       .last_words = error.message});
}

// ---- what a rank with the package says itself ----

void ProgramRanks::adopt_link(int local_rank, int fd) {
  Rank& rank = at(local_rank);
  // Its queue needs no limit, as a worker's (node_workers.cc).
  rank.link = std::make_shared<LineSocket>(
      loop_, LineSocket::Socket(loop_, boost::asio::local::stream_protocol(), fd),
      LineSocket::Limits{.line_bytes_max = kLineBytesMax, .queue_bytes_max = std::numeric_limits<size_t>::max()});
  rank.link->start({.on_line = [this, local_rank](const std::string& line) { on_link_line(local_rank, line); },
                    .on_closed = [](const std::string&) {}});  // its end is noticed by reaping it
}

void ProgramRanks::close_link(Rank& rank) {
  if (rank.link) rank.link->close();
  rank.link.reset();
  rank.open_requests.clear();
}

void ProgramRanks::on_link_line(int local_rank, const std::string& line) {
  const Result<WorkerMessage> message = decode_worker_message(line);
  if (!message.ok()) {
    return refuse(local_rank, "it sent a message that the agent cannot read: " + message.error().message);
  }
  on_worker_message(local_rank, *message);
}

void ProgramRanks::on_worker_message(int local_rank, const WorkerMessage& message) {
  Rank& rank = at(local_rank);
  if (const auto* const hello = std::get_if<Hello>(&message)) return on_hello(local_rank, *hello);
  if (const auto* const outlives = std::get_if<Outlives>(&message)) {
    const bool lives = rank.state == State::kRunning || rank.state == State::kForking;  // its pid may not be known yet
    rank.outlives = lives && !rank.is_cut && rank.pending_signal == 0;
    rank.leaves_together = outlives->leaves_together;
    if (rank.outlives) handlers_.on_message(local_rank, message);
    return;
  }
  if (const auto* const replace = std::get_if<Replace>(&message)) {
    handlers_.on_note("rank " + std::to_string(rank.assignment->rank) + " is started again: " + replace->message);
    rank.left_because = replace->message;
    return end_for_group(local_rank, kLeftReplaced, std::chrono::milliseconds{0});
  }
  if (const auto* const progress = std::get_if<Progress>(&message)) {
    return on_report({.step = progress->step,
                      .total_steps = progress->total_steps,
                      .epoch = progress->epoch,
                      .loss = progress->loss,
                      .lr = progress->lr,
                      .grad_norm = progress->grad_norm,
                      .samples_per_second = progress->samples_per_second});
  }
  if (const auto* const evaluation = std::get_if<Evaluation>(&message)) {
    ProgressReport report{.step = reported_ ? reported_->step : std::nullopt, .others = {}};
    for (const auto& [name, value] : evaluation->metrics) {
      if (std::isfinite(value)) report.others[name] = value;
    }
    return on_report(report);
  }
  if (const auto* const failing = std::get_if<Failing>(&message)) {
    rank.last_words = failing->message;
    return;
  }
  if (const auto* const metrics = std::get_if<Metrics>(&message)) {
    rank.own_families = metrics->families;
    return;
  }
  if (const auto* const request = std::get_if<StoreRequest>(&message)) {
    if (request->id >= kOwnRequests) return refuse(local_rank, "its store requests have ids of the agent's");
    rank.open_requests.insert(request->id);
  }
  handlers_.on_message(local_rank, message);
}

void ProgramRanks::on_hello(int local_rank, const Hello& hello) {
  Rank& rank = at(local_rank);
  if (std::string why = refusal_of(hello); !why.empty()) return refuse(local_rank, std::move(why));
  if (rank.program_pid) {
    return refuse(local_rank,
                  "a second program of this rank has called lockstep.init_process_group, and the peers are in "
                  "the group of the first: start each program as a run of its own");
  }
  if (hello.package != build_version() && !std::exchange(has_said_version_, true)) {
    handlers_.on_note("the installed package lockstep has version " + hello.package + ", and this is lockstep " +
                      build_version() + ": they understand each other, but install the same where you can");
  }
  rank.program_pid = hello.pid;
  if (rank.assignment && !rank.is_cut) rank.link->send(encode(AgentMessage(*rank.assignment)));
}

// It is ended, and `why` is the reason of its end.
void ProgramRanks::refuse(int local_rank, std::string why) {
  at(local_rank).last_words = std::move(why);
  const std::shared_ptr<LineSocket> link = at(local_rank).link;
  end_process(local_rank, SIGKILL);  // before it sees the end of its link
  link->close();
}

// ---- steps ----

std::optional<BeatSnapshot> ProgramRanks::beats(int local_rank) const {
  const Rank& rank = at(local_rank);
  if (!rank.page) return std::nullopt;
  BeatSnapshot beats = rank.page->read();
  // Before its first step nothing tells whether a program makes progress: it may load, compile or download for hours.
  // One that waits for its peers, as the package says it, does none of that; and a process that is stopped does
  // nothing: the package's thread shows that it lives.
  const bool waits = rank.program_pid && waits_for_a_peer(beats.phase, beats.activity);
  const bool shows_life = rank.program_pid && beats.alive_ns != 0;
  if (beats.step == 0 && !waits) beats.changed_ns = shows_life ? last_sign_of_life_ns(beats) : monotonic_ns();
  if (!rank.outlives) beats.generation = generation_;
  // A script may go on after the program that it has started. Nobody says what it does then.
  const bool has_program_ended =
      rank.program_pid && *rank.program_pid != rank.pid && ::kill(*rank.program_pid, 0) != 0 && errno == ESRCH;
  if (has_program_ended) beats.changed_ns = monotonic_ns();
  // What has ended is not silent, however long the others take.
  if (has_program_ended || rank.state == State::kFinished) beats.alive_ns = 0;
  return beats;
}

void ProgramRanks::open_progress_server() {
  Result<std::unique_ptr<ProgressServer>> server =
      ProgressServer::start(folder_->path(), [this](ProgressReport report) {
        boost::asio::post(loop_, [this, report = std::move(report)] { on_report(report); });
      });
  if (server.ok()) {
    progress_server_ = std::move(*server);
  } else {
    handlers_.on_note("a program's progress reports are not heard: " + server.error().message);
  }
}

void ProgramRanks::on_report(const ProgressReport& report) {
  const Rank& rank = at(0);
  const bool is_running = rank.state == State::kForking || rank.state == State::kRunning;
  if (!is_running || rank.assignment->rank != 0) return;
  if (!reported_) reported_.emplace();
  update(*reported_, report);
  reported_ns_ = monotonic_ns();
  // One that keeps its state counts its steps itself, and reports a step before it is committed.
  if (report.step) steps_before_ = rank.outlives ? 0 : std::max<int64_t>(0, *report.step - rank.page->read().step);
  send_progress();
  if (!report.others.empty()) {
    handlers_.on_message(0, Evaluation{.epoch = reported_->epoch, .metrics = reported_->others});
  }
  send_figures(report);
}

// Each report is a point of each figure that it names.
void ProgramRanks::send_figures(const ProgressReport& report) {
  const Progress progress = progress_now();
  if (!report.step && progress.step <= 0) return;  // nobody counts its steps
  StepFigures figures{.step = report.step.value_or(progress.step), .values = {{"loss", report.loss}}};
  for (const auto& [name, value] : report.others) {
    if (reported_->others.contains(name)) figures.values.emplace_back(name, value);
  }
  figures.values.emplace_back("lr", report.lr);
  figures.values.emplace_back("grad_norm", report.grad_norm);
  figures.values.emplace_back("samples_per_second", report.samples_per_second);
  if (progress.steps_per_second > 0) figures.values.emplace_back("steps_per_second", progress.steps_per_second);
  handlers_.on_figures(std::move(figures));
}

// What the program has said of itself, brought up to date by the steps that are counted.
Progress ProgramRanks::progress_now() const {
  const BeatSnapshot beats = at(0).page->read();
  Progress progress = progress_at(beats.step + steps_before_);
  if (recent_steps_.size() > 1) {
    const auto [first_step, first_ns] = recent_steps_.front();
    const auto [last_step, last_ns] = recent_steps_.back();
    progress.steps_per_second = static_cast<double>(last_step - first_step) / seconds_from(first_ns, last_ns);
  }
  if (!reported_) return progress;
  progress.total_steps = reported_->total_steps.value_or(0);
  progress.epoch = reported_->epoch;
  progress.loss = reported_->loss;
  progress.lr = reported_->lr;
  progress.grad_norm = reported_->grad_norm;
  progress.samples_per_second = reported_->samples_per_second;
  const int64_t left = progress.total_steps - progress.step;
  if (reported_->eta_seconds >= 0) {
    progress.eta_seconds = std::max(0.0, reported_->eta_seconds - seconds_from(reported_ns_, monotonic_ns()));
  } else if (left >= 0 && progress.total_steps > 0 && progress.steps_per_second > 0) {
    progress.eta_seconds = static_cast<double>(left) / progress.steps_per_second;
  }
  return progress;
}

// Rank 0's node only.
void ProgramRanks::send_progress() {
  const Progress progress = progress_now();
  if (progress.step <= 0) return;
  if (at(0).first_step < 0) {
    const BeatSnapshot beats = at(0).page->read();  // without a step where the program only reports its own
    on_first_step(progress.step, beats.step > 0 ? beats.committed_ns : monotonic_ns());
  }
  handlers_.on_message(0, progress);
}

void ProgramRanks::send_metrics(const std::optional<Progress>& progress) {
  const double now_unix = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const int64_t now_ns = monotonic_ns();
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    Rank& rank = at(local_rank);
    if (rank.state != State::kRunning) continue;
    const BeatSnapshot beats = rank.page->read();
    if (beats.step <= 0) continue;
    if (rank.first_step < 0) rank.first_step = beats.step;
    const bool knows_the_run = rank.assignment->rank == 0 && progress;
    MetricFamilies families;
    families.set(metric::kSteps, static_cast<double>(std::max<int64_t>(1, beats.step - rank.first_step + 1)));
    families.set(metric::kStep, static_cast<double>(knows_the_run ? progress->step : beats.step));
    families.set(metric::kLastStepTimestamp, now_unix - seconds_from(beats.committed_ns, now_ns));
    if (knows_the_run) set_run_metrics(*progress, families);
    if (knows_the_run && reported_) {
      for (const auto& [name, value] : reported_->others) {
        families.set(metric::kEvaluationValue, value, {{"metric", name}});
      }
    }
    Metrics metrics{families.of_rank(rank.assignment->rank)};
    metrics.families.insert(metrics.families.end(), rank.own_families.begin(), rank.own_families.end());
    handlers_.on_message(local_rank, metrics);
  }
}

// Says for rank 0 when the group's first step was made, and after that how far it is; and on every node, what a restart
// would not lose.
void ProgramRanks::schedule_step_poll() {
  step_timer_.expires_after(at(0).first_step < 0 ? kFirstStepPollInterval : kProgressInterval);
  step_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    const State state = at(0).state;
    if (state != State::kForking && state != State::kRunning) return;
    poll_step();
    schedule_step_poll();
  });
}

void ProgramRanks::poll_step() {
  Rank& rank = at(0);
  const BeatSnapshot beats = rank.page->read();
  if (beats.step > 0 && (recent_steps_.empty() || beats.committed_ns > recent_steps_.back().second)) {
    recent_steps_.emplace_back(beats.step, beats.committed_ns);
    if (recent_steps_.size() > kRateWindow) recent_steps_.pop_front();
  }
  if (beats.step > 0 && rank.first_step < 0) on_first_step(beats.step, beats.committed_ns);
  const bool has_rank_0 = rank.assignment->rank == 0;
  if (has_rank_0) send_progress();
  send_metrics(has_rank_0 ? std::optional(progress_now()) : std::nullopt);
  const bool has_stepped_for_long =
      rank.first_step >= 0 && beats.committed_ns - rank.first_step_ns > std::chrono::nanoseconds(kLongEnough).count();
  if (has_stepped_for_long && !std::exchange(rank.has_progressed, true)) handlers_.on_progress(beats.step);
}

void ProgramRanks::on_first_step(int64_t step, int64_t committed_ns) {
  Rank& rank = at(0);
  rank.first_step = step;
  rank.first_step_ns = committed_ns;
  if (rank.assignment->rank == 0 && !rank.outlives) {
    handlers_.on_message(0, Resumed{.generation = generation_,
                                    .step = step,
                                    .formed_ns = formed_ns_,
                                    .synced_ns = formed_ns_,
                                    .committed_ns = committed_ns,
                                    .resumed_step = step - 1,
                                    .origin = "the program's own checkpoint, if it has one"});
  }
  // A state that came from another rank lies in no checkpoint. The package says when one is written.
  if (!rank.outlives && kept_progress_.on_first_step(step)) handlers_.on_progress(step);
}

// ---- ending ----

void ProgramRanks::end_for_group(int local_rank, const char* left_as, std::chrono::milliseconds grace) {
  Rank& rank = at(local_rank);
  rank.is_cut = true;
  rank.left_as = left_as;
  if (rank.state == State::kAwaiting || rank.state == State::kFinished) return leave(local_rank);
  // SIGTERM would overtake the signal that asks for the stacks. What hangs does not handle it, either.
  if (!rank.has_printed_stacks) end_process(local_rank, SIGTERM);
  kill_later(local_rank, grace);
}

void ProgramRanks::end_process(int local_rank, int signal) {
  Rank& rank = at(local_rank);
  switch (rank.state) {
    case State::kNone:
      return;
    case State::kAwaiting:
    case State::kFinished:
      return report_end(WorkerEnd{.local_rank = local_rank,
                                  .code = rank.stop_code != 0 ? rank.stop_code : kSignalCodes + signal,
                                  .killed_by_us = rank.killed_by_us});
    case State::kForking:
      rank.pending_signal =
          std::max(rank.pending_signal == SIGKILL ? SIGKILL : signal, signal == SIGKILL ? SIGKILL : 0);
      return;
    case State::kRunning:
      // A signal that ends all is for the whole process group; a request to stop is for the program itself.
      if (!rank.wait_status) ::kill(signal == SIGKILL ? -rank.pid : rank.pid, signal);
  }
}

void ProgramRanks::kill_later(int local_rank, std::chrono::milliseconds grace) {
  Rank& rank = at(local_rank);
  if (rank.kill_timer || rank.wait_status) return;
  rank.kill_timer = std::make_unique<boost::asio::steady_timer>(loop_, grace);
  rank.kill_timer->async_wait([this, local_rank](boost::system::error_code error) {
    const State state = at(local_rank).state;
    if (!error && (state == State::kRunning || state == State::kForking)) end_process(local_rank, SIGKILL);
  });
}

void ProgramRanks::reap() {
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    const auto it = std::find_if(ranks_.begin(), ranks_.end(),
                                 [pid](const Rank& rank) { return rank.state == State::kRunning && rank.pid == pid; });
    if (it != ranks_.end()) {
      on_process_end(static_cast<int>(it - ranks_.begin()), wait_status);
    } else if (zygote_ && pid == zygote_->pid()) {
      zygote_->close();
      on_zygote_end("the zygote has ended with " + exit_reason(exit_code_of_wait_status(wait_status)));
    } else if (!fork_requests_.empty()) {
      unknown_ends_[pid] = wait_status;
    }
  }
  if (fork_requests_.empty()) unknown_ends_.clear();
}

// What the process has started and left may hold a GPU or a socket, so it must be gone before the next start.
void ProgramRanks::on_process_end(int local_rank, int wait_status) {
  Rank& rank = at(local_rank);
  rank.wait_status = wait_status;
  rank.ended_ns = monotonic_ns();
  if (rank.link) rank.link->drain();  // its last words
  if (local_rank == 0) poll_step();   // it may have made its first step a moment ago
  end_when_alone(local_rank);
}

void ProgramRanks::end_when_alone(int local_rank) {
  Rank& rank = at(local_rank);
  const bool is_alone = ::kill(-rank.pid, SIGKILL) != 0 && errno == ESRCH;
  const std::chrono::nanoseconds waited(monotonic_ns() - rank.ended_ns);
  const bool is_first = waited > kFirstFailureGrace || !failed_after_another(local_rank);
  if ((is_alone && is_first) || waited > kOrphansGrace) return on_program_end(local_rank, *rank.wait_status);
  rank.kill_timer = std::make_unique<boost::asio::steady_timer>(loop_, kOrphansPollInterval);
  rank.kill_timer->async_wait([this, local_rank](boost::system::error_code error) {
    if (error) return;
    reap();  // as their subreaper
    if (at(local_rank).wait_status) end_when_alone(local_rank);
  });
}

// A rank whose peer fails may end before that peer does, which writes its error down before it closes its sockets.
bool ProgramRanks::failed_after_another(int local_rank) const {
  const Rank& rank = at(local_rank);
  if (exit_code_of_wait_status(*rank.wait_status) == 0 || rank.is_cut || rank.stop_code != 0) return false;
  std::error_code none;
  const auto own = std::filesystem::last_write_time(rank.error_file, none);
  const bool has_own = !none;
  for (int other = 0; other < nproc(); ++other) {
    if (other == local_rank || at(other).state != State::kRunning) continue;
    const auto others = std::filesystem::last_write_time(at(other).error_file, none);
    if (!none && (!has_own || others < own)) return true;
  }
  return false;
}

void ProgramRanks::on_program_end(int local_rank, int wait_status) {
  Rank& rank = at(local_rank);
  const pid_t pid = rank.pid;
  rank.wait_status.reset();
  const bool had_terminal = command_.terminal_rank == local_rank;
  if (had_terminal) reclaim_foreground();
  output_.finish(local_rank);
  rank.kill_timer.reset();
  // One that was asked to stop does not wait for another group, also when its group ended meanwhile.
  if (rank.is_cut && !rank.killed_by_us && rank.stop_code == 0) return leave(local_rank);
  const int code = exit_code_of_wait_status(wait_status);
  WorkerEnd end{.local_rank = local_rank,
                .pid = pid,
                .code = code,
                .last_words = reason_of(local_rank),
                .killed_by_us = rank.killed_by_us};
  // Ctrl-C reaches the rank in the foreground, and not this process.
  if (had_terminal && code == code_of(ExitCode::kInterrupted) && rank.stop_code == 0) rank.stop_code = code;
  if (rank.stop_code != 0 && !rank.killed_by_us) {
    end.code = rank.stop_code;
    return report_end(std::move(end));
  }
  if (code == 0 && rank.killed_by_us) {  // it was to be killed, and has ended by itself just before
    end.code = kSignalCodes + SIGKILL;
    return report_end(std::move(end));
  }
  if (code != 0 && rank.stop_code == 0) output_.show_last_lines(rank.assignment->rank - local_rank);
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL && !rank.killed_by_us;
  if (code == 0) {
    close_link(rank);
    rank.state = State::kFinished;
    rank.page->set_activity(Activity::kStopping, Phase::kWaiting);
    // Its group was cut before it ended, so the others form the next group and need it there: it is started again.
    if (*rank.left_as != '\0') return leave(local_rank);
    const bool all =
        std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state == State::kFinished; });
    if (!all) return;
    const Assignment& first = *at(0).assignment;
    if (first.nnodes == 1) return on_all_finished();
    std::vector<std::string> ended;
    for (const Rank& r : ranks_) ended.push_back(kEndedKey + std::to_string(r.assignment->rank));
    ask_store(StoreOp::kSet, ended, std::vector<std::string>(ended.size(), "1"));
    std::vector<std::string> all_keys;
    for (int r = 0; r < first.world_size; ++r) all_keys.push_back(kEndedKey + std::to_string(r));
    ask_store(StoreOp::kWait, std::move(all_keys), {});
    finished_request_ = next_request_;
    return;
  }
  if (killed && oom_kills_.claim_kill(std::chrono::steady_clock::now())) {
    end.code = code_of(ExitCode::kOutOfMemory);
    end.last_words = "the kernel killed it because the memory limit was reached";
  } else if (!WIFSIGNALED(wait_status) || is_stop(code)) {
    end.code = code_of(ExitCode::kCrash);
    const std::string how = WIFSIGNALED(wait_status) ? "somebody sent it " + exit_reason(code)
                                                     : "its exit code was " + std::to_string(code);
    if (code != end.code) end.last_words = how + (end.last_words.empty() ? "" : ": " + end.last_words);
  }
  report_end(std::move(end));
}

// The error that ended it, as torch's error file has it; else what it said to stderr.
std::string ProgramRanks::reason_of(int local_rank) const {
  if (!at(local_rank).last_words.empty()) return at(local_rank).last_words;
  const std::string reason = reason_of_error_file(fs_, at(local_rank).error_file);
  return reason.empty() ? output_.reason(local_rank) : reason;
}

// The process is gone, and the rank waits for the next placement.
void ProgramRanks::leave(int local_rank) {
  Rank& rank = at(local_rank);
  const char* const how = rank.left_as;
  const std::string because = rank.left_because;
  if (const Status made = begin_anew(rank); !made.ok()) return fail_to_start(local_rank, made.error());
  report(local_rank, Left{.generation = generation_, .cause = how, .message = because, .step = 0});
}

void ProgramRanks::on_all_finished() {
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    Rank& rank = at(local_rank);
    if (rank.state != State::kFinished) continue;
    report_end(WorkerEnd{.local_rank = local_rank, .pid = rank.pid, .code = 0});
  }
}

int ProgramRanks::count_alive() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.state != State::kNone; }));
}

void ProgramRanks::signal_all(int signal) {
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    if (!is_alive(local_rank)) continue;
    if (at(local_rank).stop_code == 0) at(local_rank).stop_code = kSignalCodes + signal;
    // Ctrl-C goes to the ranks as SIGINT, as a terminal would send it.
    end_process(local_rank, signal == SIGTERM ? stop_signal_ : signal);
  }
}

// Which rank of a program the others wait for cannot be seen from outside: their stacks show it. So those of all ranks
// are printed as soon as one makes no step.
void ProgramRanks::dump_stacks(int /*local_rank*/, int /*rank*/) {
  for (Rank& hung : ranks_) {
    if (hung.state != State::kRunning || hung.wait_status || hung.has_printed_stacks) continue;
    hung.has_printed_stacks = true;
    handlers_.on_note("rank " + std::to_string(hung.assignment->rank) + " (pid " + std::to_string(hung.pid) +
                      ") hangs, or waits for one that does; its threads, as the kernel sees them:");
    for (const std::string& line : thread_states("/proc", hung.pid)) handlers_.on_note("  " + line);
    if (handles_signal("/proc", hung.pid, kStackSignal)) ::kill(hung.pid, kStackSignal);
  }
}

void ProgramRanks::kill(int local_rank) {
  if (!is_alive(local_rank)) return;
  Rank& rank = at(local_rank);
  rank.killed_by_us = true;
  if (rank.state != State::kRunning) return end_process(local_rank, SIGKILL);
  if (rank.wait_status) return;
  rank.kill_timer.reset();
  kill_later(local_rank, kStackPrintTime);  // its stack may still be on its way
}

void ProgramRanks::kill_all() {
  for (int local_rank = 0; local_rank < nproc(); ++local_rank) {
    if (!is_alive(local_rank)) continue;
    at(local_rank).killed_by_us = true;
    end_process(local_rank, SIGKILL);
  }
}

}  // namespace lockstep
