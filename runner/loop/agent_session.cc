#include "runner/loop/agent_session.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "runner/contract/exit_code.h"

namespace lockstep {

AgentSession::AgentSession(int fd, int local_rank) : channel_(fd) {
  send(Hello{.local_rank = local_rank, .pid = getpid()});
  reader_ = std::thread([this] { read_loop(); });
}

AgentSession::~AgentSession() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  channel_.shutdown();
  reader_.join();
}

Assignment AgentSession::await_assignment() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return assignment_.has_value(); });
  return *std::exchange(assignment_, std::nullopt);
}

void AgentSession::send(const WorkerMessage& message) {
  // A link that has ended is noticed by the reader, which leaves; a line that cannot be sent is lost with its reader.
  static_cast<void>(channel_.write_line(encode(message)));
}

Result<StoreReply> AgentSession::call(StoreRequest request) {
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
  }
  request.id = id;
  TRY(channel_.write_line(encode(WorkerMessage(std::move(request)))));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return replies_.contains(id) || closing_; });
  auto reply = replies_.extract(id);
  if (reply.empty()) return Error{ErrorCode::kGone, "the link to the agent has ended"};
  return std::move(reply.mapped());
}

void AgentSession::read_loop() {
  while (true) {
    Result<std::optional<std::string>> line = channel_.read_line();
    if (!line.ok() || !line->has_value()) {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      std::fprintf(stderr, "worker: the agent is gone; leaving\n");
      _exit(static_cast<int>(ExitCode::kPeerLost));
    }
    Result<AgentMessage> message = decode_agent_message(**line);
    if (message.ok()) {
      on_message(std::move(*message));
    } else {
      std::fprintf(stderr, "worker: %s\n", message.error().message.c_str());
    }
  }
}

void AgentSession::on_message(AgentMessage message) {
  const std::lock_guard lock(mutex_);
  if (auto* assignment = std::get_if<Assignment>(&message)) {
    assignment_ = *assignment;
  } else if (auto* reply = std::get_if<StoreReply>(&message)) {
    replies_[reply->id] = std::move(*reply);
  }
  changed_.notify_all();
}

}  // namespace lockstep
