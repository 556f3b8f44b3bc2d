// Workqueue: keys to be reconciled, each at most once at a time.
//
// Level-triggered: a key says that an object must be reconciled, but not what happened to it. Equal keys collapse; of
// two deadlines the earlier one stays; a key that is added while a worker holds it comes back when that worker is done.
// Keys are handed out in the order in which they became due, except that some go first, as in controller-runtime's
// priority queue. Failures back off per key from 5 ms, doubling, to 60 s, and start again after `forget`. The terms
// are those of client-go's workqueue.
//
// Threads: safe from all threads. Tests set `now`; a thread that waits in `get` reads it again when a key is added.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "operator/api/object_meta.h"
#include "operator/control/clock.h"

namespace lockstep::control {

inline constexpr std::chrono::milliseconds kBackoffFirst{5};
// client-go's 1,000 s would let a job wait for a quarter of an hour after the API server is back.
inline constexpr std::chrono::seconds kBackoffMax{60};

class Workqueue {
 public:
  struct Options {
    Now now = Clock::now;
    // Called without a lock held: how long a key was due before it was handed out, and how long it was worked on.
    std::function<void(Clock::duration)> on_queued;
    std::function<void(Clock::duration)> on_worked;
  };
  Workqueue();
  explicit Workqueue(Options options);
  ~Workqueue();
  Workqueue(const Workqueue&) = delete;
  Workqueue& operator=(const Workqueue&) = delete;

  void add(const api::ObjectKey& key);
  // The key is due now, and is handed out before all that were not added in this way.
  void add_first(const api::ObjectKey& key);
  // The key becomes due after `delay`, or earlier if it has an earlier deadline already.
  void add_within(const api::ObjectKey& key, Clock::duration delay);
  void add_after(const api::ObjectKey& key, Clock::duration delay);  // the same, counted as a retry
  // The delay depends on the key's failures in a row, and is at least `at_least`.
  void add_with_backoff(const api::ObjectKey& key, Clock::duration at_least = {});
  void forget(const api::ObjectKey& key);  // sets its count of failures to 0

  // Waits for the next key that is due; nullopt when `stop` is requested. Call `done` for every key that was returned.
  std::optional<api::ObjectKey> get(const std::stop_token& stop);
  // The same without waiting: nothing when no key is due.
  std::optional<api::ObjectKey> try_get();
  void done(const api::ObjectKey& key);

  struct Statistics {
    size_t depth = 0;                   // due, not yet handed out
    uint64_t adds = 0;                  // keys that were asked for, equal ones collapsed
    uint64_t retries = 0;               // calls of add_after and add_with_backoff
    Clock::duration longest_running{};  // of the keys handed out
    Clock::duration unfinished_work{};  // sum over them
  };
  [[nodiscard]] Statistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
