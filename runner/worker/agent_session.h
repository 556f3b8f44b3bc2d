// AgentSession: a worker's end of the link to its agent.
//
// Role: says hello, receives assignments, cuts and requests to leave together, carries store requests, sends what the
// agent shows and exports, and shows the agent that this process lives (BeatPage).
// Threads: one reader thread ("agent-link") for the life of the session; it also fires a group's abort. The functions
// may be called from any thread, but await_assignment and the watching of an abort: the training thread.
// The end of the link means that the agent is gone: the process leaves at once with exit code 10, even when the
// training thread sits in a collective, because nothing that it could still finish would be seen by anybody.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runner/base/line_channel.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/messages.h"
#include "runner/dist/group_abort.h"
#include "runner/dist/link_store.h"
#include "runner/loop/agent_link.h"
#include "runner/loop/injected_faults.h"

namespace lockstep {

// How often the reader thread shows that the process lives.
inline constexpr std::chrono::milliseconds kAliveInterval{500};

class AgentSession final : public AgentLink, public StoreTransport {
 public:
  // Takes over the descriptor and says hello when `hello` is called. `page` and `faults` outlive the session.
  // `is_asked_to_stop` (by a signal, which can notify nobody) is asked from any thread while something is waited for.
  AgentSession(int fd, int local_rank, BeatPage& page, InjectedFaults& faults, std::function<bool()> is_asked_to_stop);
  ~AgentSession() override;
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;

  // The data is read: this worker can be placed. `terms`: as Hello's.
  void hello(const std::string& terms);

  struct Received {
    Assignment assignment;
    int64_t at_ns = 0;  // CLOCK_MONOTONIC
  };
  // Blocks until the agent has an assignment that was not yet taken; nullopt when a stop is requested first. The page
  // shows its generation, and that the worker awaits no more, before it is returned.
  std::optional<Received> await_assignment();

  // While `abort` is watched, a cut of `generation` fires it; at once when that generation was cut already. One that
  // is being fired when the watching stops goes on: retire it.
  void watch(uint64_t generation, std::shared_ptr<GroupAbort> abort);
  void stop_watching();
  [[nodiscard]] bool was_cut(uint64_t generation) const override;

  [[nodiscard]] std::optional<int> leave_together(uint64_t generation) const override;

  void send(const WorkerMessage& message) override;

  // A request of a generation that was cut is answered as stale, also one that waits for its key. So is a request that
  // waits while a stop is asked for, because the key may never come.
  Result<StoreReply> call(StoreRequest request) override;

 private:
  void read_loop();
  void on_message(AgentMessage message);
  // With mutex_ held. The abort of a group that the message cuts.
  [[nodiscard]] std::shared_ptr<GroupAbort> take_in(AgentMessage message);
  [[noreturn]] void leave_without_agent();

  const int local_rank_;
  BeatPage& page_;
  InjectedFaults& faults_;
  const std::function<bool()> is_asked_to_stop_;
  LineChannel channel_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // State below is protected by mutex_.
  bool closing_ = false;
  std::optional<Received> received_;
  uint64_t cut_generation_ = 0;  // this one and all before it
  std::string cut_cause_;
  LeaveTogether leave_together_;
  uint64_t watched_generation_ = 0;
  std::shared_ptr<GroupAbort> abort_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::optional<StoreReply>> open_calls_;  // by id; the reply once it is there

  std::thread reader_;
};

}  // namespace lockstep
