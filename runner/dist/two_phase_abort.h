// TwoPhaseAbort: ends a communicator whose calls may hang, without freeing it while another thread still uses it.
//
// Role: NCCL's abort frees the communicator and may take seconds. So a cut has two phases:
//   1. A thread of this class ("NCCL watch") revokes the communicator: collectives in flight end with garbage in their
//      buffers (the commit gate is shut by then, so it does not matter), and nothing is freed.
//   2. The training thread returns from its wait or launch and calls abort(), which ends and frees the communicator.
// Launches and the revoke share a mutex, because a collective that is launched during a revoke never ends. A launch
// that has not returned within `patience` hangs, and only an abort ends it: then the thread aborts in phase 1.
// The same thread polls the communicator for errors, because with blocking waits c10d does not; otherwise a link that
// breaks while both of its ends live would be noticed only after the stall timeout.
// Threads: cut() from any thread; it only notifies the watching thread and returns, so the agent-link thread, which
// marks this process as alive, may call it. All else from the training thread.
// Errors: after a cut, whatever a launch throws is replaced by RunFault (kPeerLost), because NCCL then reports
// ncclInvalidUsage.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <thread>

#include "runner/base/mutex.h"

namespace lockstep {

class TwoPhaseAbort {
 public:
  struct Calls {
    std::function<void()> revoke;                    // ends what is in flight, frees nothing; throws if it cannot
    std::function<void()> abort;                     // ends everything, and frees the communicator
    std::function<std::exception_ptr()> error = {};  // an error that the communicator has found; null: none
    std::function<void()> on_error = {};             // an error or a timeout: the whole group is to be cut; any thread
    std::chrono::milliseconds patience{1000};        // most that a launch may take after a cut
    std::chrono::milliseconds error_interval{100};   // between two calls of `error`
  };

  explicit TwoPhaseAbort(Calls calls);
  ~TwoPhaseAbort();
  TwoPhaseAbort(const TwoPhaseAbort&) = delete;
  TwoPhaseAbort& operator=(const TwoPhaseAbort&) = delete;

  // Waits until the communicator's init, begun by the caller, has ended. When the init fails, takes longer than
  // `timeout`, or ends after a cut, the communicator is aborted, and this throws.
  void await_init(const std::function<bool()>& has_ended, std::chrono::milliseconds timeout);

  // Runs a call that starts a collective.
  template <typename Launch>
  auto launch(const Launch& start) {
    const TimedMutexLock lock(launching_);
    check();
    try {
      return start();
    } catch (const std::exception&) {
      check();
      throw;
    }
  }

  // Waits until a collective has ended. Throws what check() throws. When it takes longer than `timeout`, the group is
  // cut, and this throws RunFault (kTimeout).
  void await_collective(const std::function<bool()>& has_ended, std::chrono::milliseconds timeout);

  // Throws the communicator's error, or the cut: then the results of collectives in flight are garbage.
  void check() const;

  void cut();

  // Phase two: aborts the communicator. Later calls do nothing.
  void abort() noexcept;

 private:
  void watch(const std::stop_token& stop);
  [[nodiscard]] std::exception_ptr find_error();
  void fail(const std::exception_ptr& error);
  void end_what_is_in_flight();
  void abort_once() noexcept;

  const Calls calls_;
  TimedMutex launching_;     // held during a launch, a revoke or a query of errors
  bool is_aborted_ = false;  // set by the watcher, or by abort() after the watcher has ended
  mutable Mutex mutex_;      // held only briefly, never during a call of the communicator
  ConditionVariable changed_;
  bool cut_ GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  std::jthread watcher_;  // the last member: it uses those above, so it is destroyed (joined) first
};

}  // namespace lockstep
