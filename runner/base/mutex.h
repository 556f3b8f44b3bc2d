// Mutex, TimedMutex, their locks, ConditionVariable: std's own, with what clang's -Wthread-safety needs to know
// (`make lint`). No other code of the product uses std's (tests/rooms_test).
//
// A field that a mutex guards says so: `int count_ GUARDED_BY(mutex_);`. A function, or a lambda given to wait(), that
// is called with the mutex locked: `void grow() REQUIRES(mutex_);`, `wait(lock, [this]() REQUIRES(mutex_) { return
// count_ > 0; })`. Other compilers see no attribute.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#ifdef __clang__
#define LOCKSTEP_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define LOCKSTEP_THREAD_SAFETY(...)
#endif
#define GUARDED_BY(...) LOCKSTEP_THREAD_SAFETY(guarded_by(__VA_ARGS__))
#define REQUIRES(...) LOCKSTEP_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) LOCKSTEP_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) LOCKSTEP_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) LOCKSTEP_THREAD_SAFETY(release_capability(__VA_ARGS__))

namespace lockstep {

class LOCKSTEP_THREAD_SAFETY(capability("mutex")) Mutex {
 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Locks for as long as it lives; unlock() and lock() in between.
class LOCKSTEP_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() ACQUIRE() { lock_.lock(); }
  void unlock() RELEASE() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

// One that may be tried for: `if (!mutex.try_lock_for(1s)) return; const TimedMutexLock lock(mutex, std::adopt_lock);`.
class LOCKSTEP_THREAD_SAFETY(capability("mutex")) TimedMutex {
 public:
  [[nodiscard]] bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  [[nodiscard]] bool try_lock_for(std::chrono::milliseconds patience) TRY_ACQUIRE(true) {
    return mutex_.try_lock_for(patience);
  }

 private:
  friend class TimedMutexLock;
  std::timed_mutex mutex_;
};

// Locks for as long as it lives, or takes over what was tried for with success.
class LOCKSTEP_THREAD_SAFETY(scoped_lockable) TimedMutexLock {
 public:
  explicit TimedMutexLock(TimedMutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  TimedMutexLock(TimedMutex& mutex, std::adopt_lock_t adopt) REQUIRES(mutex) : lock_(mutex.mutex_, adopt) {}
  ~TimedMutexLock() RELEASE() = default;
  TimedMutexLock(const TimedMutexLock&) = delete;
  TimedMutexLock& operator=(const TimedMutexLock&) = delete;

 private:
  std::lock_guard<std::timed_mutex> lock_;
};

// The arguments are those of std::condition_variable_any; a stop token ends a wait.
class ConditionVariable {
 public:
  template <typename... Arguments>
  auto wait(MutexLock& lock, Arguments&&... arguments) {
    return changed_.wait(lock.lock_, std::forward<Arguments>(arguments)...);
  }
  template <typename... Arguments>
  auto wait_for(MutexLock& lock, Arguments&&... arguments) {
    return changed_.wait_for(lock.lock_, std::forward<Arguments>(arguments)...);
  }
  template <typename... Arguments>
  auto wait_until(MutexLock& lock, Arguments&&... arguments) {
    return changed_.wait_until(lock.lock_, std::forward<Arguments>(arguments)...);
  }
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  std::condition_variable_any changed_;
};

}  // namespace lockstep
