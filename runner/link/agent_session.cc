#include "runner/link/agent_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/clock.h"
#include "runner/base/mutex.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

// A signal handler cannot notify a condition variable, so waits poll for a stop at this interval.
constexpr std::chrono::milliseconds kStopPollInterval{20};

}  // namespace

AgentSession::AgentSession(int fd, int local_rank, BeatPage& page, std::function<bool()> is_asked_to_stop)
    : local_rank_(local_rank), page_(page), is_asked_to_stop_(std::move(is_asked_to_stop)), channel_(fd) {
  reader_ = std::thread([this] { read_loop(); });
}

AgentSession::~AgentSession() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  channel_.shutdown();
  reader_.join();
}

void AgentSession::hello(const std::string& terms) {
  send(Hello{.local_rank = local_rank_, .pid = getpid(), .terms = terms});
}

std::optional<Assignment> AgentSession::await_assignment(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (!received_) {
    if (is_asked_to_stop_() || std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    changed_.wait_for(lock, std::min(kStopPollInterval, patience));
  }
  // From here on the agent treats a worker that makes no progress as hung.
  page_.generation.store(received_->generation);
  page_.changed_ns.store(monotonic_ns());
  page_.activity.store(Activity::kLoading);
  return std::exchange(received_, std::nullopt);
}

void AgentSession::watch(uint64_t generation, const std::shared_ptr<GroupAbort>& abort) {
  {
    const MutexLock lock(mutex_);
    watched_generation_ = generation;
    abort_ = abort;
    if (cut_generation_ < watched_generation_) return;
  }
  abort->fire();
}

void AgentSession::stop_watching() {
  const MutexLock lock(mutex_);
  abort_.reset();
}

bool AgentSession::was_cut(uint64_t generation) const {
  const MutexLock lock(mutex_);
  return cut_generation_ >= generation;
}

std::optional<int> AgentSession::leave_together(uint64_t generation) const {
  const MutexLock lock(mutex_);
  if (leave_together_.generation != generation) return std::nullopt;
  return leave_together_.leaving_code;
}

void AgentSession::send(const WorkerMessage& message) {
  // When the link has ended, the reader thread notices and ends the process, so an error here needs no handling.
  static_cast<void>(channel_.write_line(encode(message)));
}

Result<StoreReply> AgentSession::call(StoreRequest request) {
  TRY_ASSIGN(const uint64_t id, ask(std::move(request)));
  return *fetch_reply(id);
}

Result<uint64_t> AgentSession::ask(StoreRequest request) {
  {
    const MutexLock lock(mutex_);
    request.id = next_id_++;
    open_calls_[request.id].generation = request.generation;
  }
  const uint64_t id = request.id;
  const Status sent = channel_.write_line(encode(WorkerMessage(std::move(request))));
  if (sent.ok()) return id;
  const MutexLock lock(mutex_);
  open_calls_.erase(id);
  return sent.error();
}

std::optional<Result<StoreReply>> AgentSession::fetch_reply(uint64_t id, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  const auto at = open_calls_.find(id);
  LOCKSTEP_CHECK(at != open_calls_.end(), "the reply to each request is fetched once");
  const OpenCall& open = at->second;
  const auto is_over = [&]() REQUIRES(mutex_) {
    return open.reply.has_value() || closing_ || cut_generation_ >= open.generation;
  };
  while (!changed_.wait_for(lock, std::min(kStopPollInterval, patience), is_over) && !is_asked_to_stop_()) {
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
  }
  const OpenCall call = std::move(open_calls_.extract(at).mapped());
  if (call.reply) return *call.reply;
  if (closing_) return Result<StoreReply>(Error{ErrorCode::kGone, "the link to the agent has ended"});
  return StoreReply{.id = id,
                    .status = StoreStatus::kStale,
                    .values = {},
                    .number = 0,
                    .message = cut_generation_ >= call.generation ? "the group was cut (" + cut_cause_ + ")"
                                                                  : "a stop was asked for"};
}

uint64_t AgentSession::cut_generation() const {
  const MutexLock lock(mutex_);
  return cut_generation_;
}

std::string AgentSession::cut_cause() const {
  const MutexLock lock(mutex_);
  return cut_cause_;
}

void AgentSession::read_loop() {
  while (true) {
    page_.alive_ns.store(monotonic_ns(), std::memory_order_relaxed);
    const Result<bool> readable = channel_.wait_readable(kAliveInterval);
    if (readable.ok() && !*readable) continue;
    Result<std::optional<std::string>> line = channel_.read_line();
    if (!readable.ok() || !line.ok() || !line->has_value()) {
      const MutexLock lock(mutex_);
      if (closing_) return;
      leave_without_agent();
    }
    Result<AgentMessage> message = decode_agent_message(**line);
    if (message.ok()) {
      on_message(std::move(*message));
    } else {
      std::fprintf(stderr, "worker: %s\n", message.error().message.c_str());
    }
  }
}

void AgentSession::leave_without_agent() {
  std::fprintf(stderr, "worker: the agent is gone; leaving\n");
  _exit(code_of(ExitCode::kPeerLost));
}

void AgentSession::on_message(AgentMessage message) {
  std::shared_ptr<GroupAbort> to_fire;
  {
    const MutexLock lock(mutex_);
    to_fire = handle_message(std::move(message));
  }
  changed_.notify_all();
  // Without the lock, because fire() calls into another room, and the training thread calls was_cut() meanwhile.
  if (to_fire) to_fire->fire();
}

std::shared_ptr<GroupAbort> AgentSession::handle_message(AgentMessage message) {
  if (auto* assignment = std::get_if<Assignment>(&message)) {
    received_ = std::move(*assignment);
  } else if (auto* reply = std::get_if<StoreReply>(&message)) {
    // After a cut the caller of a request no longer waits for the reply; it is dropped then.
    if (const auto at = open_calls_.find(reply->id); at != open_calls_.end()) at->second.reply = std::move(*reply);
  } else if (auto* cut = std::get_if<Cut>(&message)) {
    cut_generation_ = std::max(cut_generation_, cut->generation);
    cut_cause_ = std::move(cut->cause);
    if (cut_generation_ >= watched_generation_) return abort_;
  } else if (auto* leave = std::get_if<LeaveTogether>(&message)) {
    leave_together_ = *leave;
  }
  return nullptr;
}

}  // namespace lockstep
