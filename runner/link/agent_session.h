// AgentSession: the worker's end of the link to its agent.
//
// Role: sends Hello, receives assignments, cuts and requests to leave together, sends store requests and the figures
// that the agent shows and exports, and marks this process as alive on the beat page (BeatPage).
// Threads: one reader thread ("agent-link") for the life of the session; it also fires a group's abort. The functions
// may be called from any thread, except await_assignment, watch and stop_watching: only from the training thread.
// When the link ends, the agent is gone: the process exits at once with code 10, even while the training thread is in a
// collective, because no agent is left to which it could report anything.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "runner/base/line_channel.h"
#include "runner/base/mutex.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/messages.h"
#include "runner/link/agent_link.h"
#include "runner/link/group_abort.h"
#include "runner/link/store_transport.h"

namespace lockstep {

// How often the reader thread marks the process as alive.
inline constexpr std::chrono::milliseconds kAliveInterval{500};
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

class AgentSession final : public AgentLink, public StoreTransport {
 public:
  // Takes ownership of the descriptor. `page` outlives the session. `is_asked_to_stop` is polled while a
  // function waits, on whichever thread called it, because a signal handler cannot notify a condition variable.
  AgentSession(int fd, int local_rank, BeatPage& page, std::function<bool()> is_asked_to_stop);
  ~AgentSession() override;
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;

  // Sends Hello: this worker has read its data and can be placed. `terms`: see Hello.
  void hello(const std::string& terms);

  // Blocks until the agent has sent a new assignment; nullopt when a stop is requested first, or `patience` is over.
  // Before it returns one, it writes the generation to the beat page and ends Activity::kAwaiting there.
  std::optional<Assignment> await_assignment(std::chrono::milliseconds patience = kForever);

  // From now on a cut of `generation` fires `abort`; it is fired here when that generation was cut already. The reader
  // thread may still be firing it when stop_watching() returns, so call abort->retire() afterwards.
  void watch(uint64_t generation, const std::shared_ptr<GroupAbort>& abort);
  void stop_watching();
  [[nodiscard]] bool was_cut(uint64_t generation) const override;

  [[nodiscard]] std::optional<int> leave_together(uint64_t generation) const override;

  void send(const WorkerMessage& message) override;

  // A request of a generation that was cut gets the reply kStale, even while it waits for its key. So does a request
  // that waits when a stop is requested, because the key may never come.
  Result<StoreReply> call(StoreRequest request) override;
  // call() in two parts, for a caller that looks around while it waits: ask() sends and returns the request's id;
  // fetch_reply() returns its reply as call() does, nullopt when it is not there after `patience`. Each reply is
  // fetched once. kGone when the link has ended.
  Result<uint64_t> ask(StoreRequest request);
  std::optional<Result<StoreReply>> fetch_reply(uint64_t id, std::chrono::milliseconds patience = kForever);

  // The newest generation that was cut, 0: none; and why.
  [[nodiscard]] uint64_t cut_generation() const;
  [[nodiscard]] std::string cut_cause() const;

 private:
  struct OpenCall {
    uint64_t generation = 0;
    std::optional<StoreReply> reply;  // once it is there
  };

  void read_loop();
  void on_message(AgentMessage message);
  // Returns the abort to fire when the message cuts the watched group; else null.
  [[nodiscard]] std::shared_ptr<GroupAbort> handle_message(AgentMessage message) REQUIRES(mutex_);
  [[noreturn]] void leave_without_agent();

  const int local_rank_;
  BeatPage& page_;
  const std::function<bool()> is_asked_to_stop_;
  LineChannel channel_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool closing_ GUARDED_BY(mutex_) = false;
  std::optional<Assignment> received_ GUARDED_BY(mutex_);
  uint64_t cut_generation_ GUARDED_BY(mutex_) = 0;  // this generation and all before it are cut
  std::string cut_cause_ GUARDED_BY(mutex_);
  LeaveTogether leave_together_ GUARDED_BY(mutex_);
  uint64_t watched_generation_ GUARDED_BY(mutex_) = 0;
  std::shared_ptr<GroupAbort> abort_ GUARDED_BY(mutex_);
  uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, OpenCall> open_calls_ GUARDED_BY(mutex_);  // by id

  std::thread reader_;
};

}  // namespace lockstep
