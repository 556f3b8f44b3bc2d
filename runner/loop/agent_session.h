// AgentSession: a worker's end of the link to its agent.
//
// Role: says hello, receives assignments, carries store requests, sends what the agent shows and exports.
// Threads: one reader thread ("agent-link") for the life of the session; send() and call() from any thread.
// The end of the link means that the agent is gone: the process leaves at once with exit code 10, even when the
// training thread sits in a collective, because nothing that it could still finish would be seen by anybody.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runner/base/line_channel.h"
#include "runner/contract/messages.h"
#include "runner/dist/link_store.h"

namespace lockstep {

class AgentSession final : public StoreTransport {
 public:
  // Takes over the descriptor and says hello.
  AgentSession(int fd, int local_rank);
  ~AgentSession() override;
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;

  // Blocks until the agent has one that was not yet taken.
  Assignment await_assignment();

  void send(const WorkerMessage& message);

  Result<StoreReply> call(StoreRequest request) override;

 private:
  void read_loop();
  void on_message(AgentMessage message);

  LineChannel channel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;                    // guarded by mutex_
  std::optional<Assignment> assignment_;    // guarded by mutex_
  uint64_t next_id_ = 1;                    // guarded by mutex_
  std::map<uint64_t, StoreReply> replies_;  // guarded by mutex_
  std::thread reader_;
};

}  // namespace lockstep
