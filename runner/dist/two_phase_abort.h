// TwoPhaseAbort: how a communicator is left whose calls may not come back, without freeing it under whoever uses it.
//
// Role: NCCL's abort frees the communicator and may take seconds. So a cut has two phases:
//   1. A thread of this class revokes the communicator: what is in flight ends, with data that mean nothing (the commit
//      gate has been shut before), and nothing is freed.
//   2. The training thread, which has come back from its wait or its launch, leaves: only then comes the abort.
// Launches and the revoke share a mutex, because a collective that is launched across a revoke never ends. A launch
// that has not come back within `patience` hangs itself, and only an abort ends it: then phase one is the abort.
// The same thread asks the communicator for its errors, because with blocking waits nobody else does; else a link that
// breaks while both of its ends live would be noticed only after the stall timeout.
// Threads: cut() from any thread; it only tells, whatever the communicator's calls take, so that the thread that shows
// that this process lives may call it. All else by the training thread.
// Errors: once it is cut, whatever a launch throws is the cut (RunFault, kPeerLost): NCCL says ncclInvalidUsage then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

class TwoPhaseAbort {
 public:
  struct Calls {
    std::function<void()> revoke;                    // ends what is in flight, frees nothing; throws where it cannot
    std::function<void()> abort;                     // ends everything, and frees the communicator
    std::function<std::exception_ptr()> error = {};  // what the communicator has found broken; null: nothing
    std::function<void()> on_error = {};             // on our own thread: the whole group is to be cut
    std::chrono::milliseconds patience{1000};        // with a launch
    std::chrono::milliseconds error_interval{100};
  };

  explicit TwoPhaseAbort(Calls calls);
  ~TwoPhaseAbort();
  TwoPhaseAbort(const TwoPhaseAbort&) = delete;
  TwoPhaseAbort& operator=(const TwoPhaseAbort&) = delete;

  // Waits until the communicator's init, which has begun, has ended. An init that fails, takes longer than `timeout`,
  // or ends after the cut is aborted, and this throws.
  void await_init(const std::function<bool()>& has_ended, std::chrono::milliseconds timeout);

  // Runs a call that starts a collective.
  template <typename Launch>
  auto launch(const Launch& start) {
    const std::lock_guard lock(launching_);
    check();
    try {
      return start();
    } catch (const std::exception&) {
      check();
      throw;
    }
  }

  // Throws when what was in flight is worth nothing: the communicator's own error, or the cut.
  void check() const;

  void cut();

  // Phase two. Whatever comes later does nothing.
  void leave() noexcept;

 private:
  void watch(const std::stop_token& stop);
  [[nodiscard]] std::exception_ptr find_error();
  void end_what_is_in_flight();
  void abort_once() noexcept;

  const Calls calls_;
  std::timed_mutex launching_;  // held while a collective is launched, or the communicator revoked or asked
  bool is_aborted_ = false;     // by the watcher, or after it
  mutable std::mutex mutex_;    // held for moments only
  std::condition_variable_any changed_;
  // State below is protected by mutex_.
  bool cut_ = false;
  std::exception_ptr error_;
  std::jthread watcher_;  // last: it uses what stands above
};

}  // namespace lockstep
