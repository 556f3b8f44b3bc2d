#include "runner/dist/two_phase_abort.h"

#include <cstdio>
#include <mutex>
#include <stop_token>
#include <utility>

#include "runner/dist/fault.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kInitPollInterval{5};
constexpr std::chrono::milliseconds kCollectivePollInterval{1};

}  // namespace

TwoPhaseAbort::TwoPhaseAbort(Calls calls) : calls_(std::move(calls)) {}

TwoPhaseAbort::~TwoPhaseAbort() { abort(); }

void TwoPhaseAbort::await_init(const std::function<bool()>& has_ended, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  try {
    while (!has_ended()) {
      check();
      if (std::chrono::steady_clock::now() > deadline) {
        throw RunFault(ExitCode::kTimeout,
                       "the communicator was not ready within " + std::to_string(timeout.count()) + " ms");
      }
      MutexLock lock(mutex_);
      changed_.wait_for(lock, kInitPollInterval, [this]() REQUIRES(mutex_) { return cut_; });
    }
    check();
  } catch (const std::exception&) {
    abort();
    check();  // after a cut, the init's own error is only a consequence
    throw;
  }
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

// Does not return at a cut, but when the revoke has ended the collective: only then is the device free.
void TwoPhaseAbort::await_collective(const std::function<bool()>& has_ended, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!has_ended()) {
    if (std::chrono::steady_clock::now() > deadline) {
      const std::string text = "a collective did not end within " + std::to_string(timeout.count()) + " ms";
      fail(std::make_exception_ptr(RunFault(ExitCode::kTimeout, text)));
      break;
    }
    std::this_thread::sleep_for(kCollectivePollInterval);
  }
  check();
}

void TwoPhaseAbort::check() const {
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  if (cut_) throw RunFault(ExitCode::kPeerLost, "the group was cut");
}

void TwoPhaseAbort::cut() {
  const MutexLock lock(mutex_);
  cut_ = true;
  changed_.notify_all();
}

void TwoPhaseAbort::abort() noexcept {
  if (watcher_.joinable()) {
    watcher_.request_stop();
    watcher_.join();
  }
  abort_once();
}

void TwoPhaseAbort::watch(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  while (!changed_.wait_for(lock, stop, calls_.error_interval, [this]() REQUIRES(mutex_) { return cut_; })) {
    if (stop.stop_requested()) return;
    lock.unlock();
    if (const std::exception_ptr error = find_error()) fail(error);
    lock.lock();
  }
  lock.unlock();
  end_what_is_in_flight();
}

// Skipped while a collective is launched: NCCL does not document that its errors may be queried then, and the launch
// returns them itself.
std::exception_ptr TwoPhaseAbort::find_error() {
  if (!launching_.try_lock()) return nullptr;
  const TimedMutexLock launching(launching_, std::adopt_lock);
  return calls_.error ? calls_.error() : nullptr;
}

// The group's own abort shuts the commit gate before it calls cut(), which lets the revoke begin.
void TwoPhaseAbort::fail(const std::exception_ptr& error) {
  {
    const MutexLock lock(mutex_);
    if (!cut_) error_ = error;  // after a cut, an error is only a consequence
  }
  if (calls_.on_error) calls_.on_error();
  cut();
}

void TwoPhaseAbort::end_what_is_in_flight() {
  if (launching_.try_lock_for(calls_.patience)) {
    const TimedMutexLock launching(launching_, std::adopt_lock);
    try {
      calls_.revoke();
      return;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "worker: a communicator could not be revoked: %s\n", classify_fault(e).message.c_str());
    }
  }
  abort_once();
}

void TwoPhaseAbort::abort_once() noexcept {
  if (std::exchange(is_aborted_, true)) return;
  try {
    calls_.abort();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: aborting a communicator: %s\n", classify_fault(e).message.c_str());
  }
}

}  // namespace lockstep
