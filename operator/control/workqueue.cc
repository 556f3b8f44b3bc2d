#include "operator/control/workqueue.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "operator/control/backoff.h"
#include "runner/base/check.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

namespace {

constexpr BackoffPolicy kBackoff{.first = kBackoffFirst, .max = kBackoffMax};

struct QueuedKey {
  // When the key is due; nullopt: it was not added. While a worker holds the key: when it is due again after `done`.
  std::optional<Clock::time_point> due;
  bool goes_first = false;
  uint64_t order = 0;                           // of equal deadlines: first come, first served
  std::optional<Clock::time_point> started_at;  // set: a worker holds it
  int failures = 0;

  [[nodiscard]] bool idle() const { return !due && !started_at && failures == 0; }
};

// A key that waits, ordered by its deadline behind those that go first.
struct Pending {
  bool waits_its_turn = true;
  Clock::time_point due;
  uint64_t order = 0;
  api::ObjectKey key;
  auto operator<=>(const Pending&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
};

}  // namespace

struct Workqueue::Impl {
  explicit Impl(Options queue_options) : options(std::move(queue_options)) {}

  const Options options;

  mutable Mutex mutex;
  ConditionVariable changed;
  std::map<api::ObjectKey, QueuedKey> entries GUARDED_BY(mutex);
  std::set<Pending> pending GUARDED_BY(mutex);  // the keys that no worker holds
  uint64_t next_order GUARDED_BY(mutex) = 0;
  uint64_t adds GUARDED_BY(mutex) = 0;
  uint64_t retries GUARDED_BY(mutex) = 0;

  // Of two deadlines the earlier one stays. A key that goes first is due now.
  void schedule(const api::ObjectKey& key, Clock::time_point due, bool goes_first) REQUIRES(mutex) {
    QueuedKey& entry = entries[key];
    if (entry.due) {
      due = std::min(due, *entry.due);
      goes_first = goes_first || entry.goes_first;
      if (due == *entry.due && goes_first == entry.goes_first) return;
    } else {
      ++adds;
    }
    if (!entry.started_at && entry.due) pending.erase(pending_of(key, entry));
    entry.due = due;
    entry.goes_first = goes_first;
    entry.order = next_order++;
    if (!entry.started_at) pending.insert(pending_of(key, entry));
  }

  void schedule_and_notify(const api::ObjectKey& key, Clock::duration delay, bool goes_first) {
    const Clock::time_point now = options.now();
    {
      const MutexLock lock(mutex);
      schedule(key, now + delay, goes_first);
    }
    changed.notify_one();
  }

  static Pending pending_of(const api::ObjectKey& key, const QueuedKey& entry) {
    return {.waits_its_turn = !entry.goes_first, .due = *entry.due, .order = entry.order, .key = key};
  }

  void forget_if_idle(std::map<api::ObjectKey, QueuedKey>::iterator found) REQUIRES(mutex) {
    if (found->second.idle()) entries.erase(found);
  }

  struct Taken {
    api::ObjectKey key;
    Clock::duration waited;
  };
  std::optional<Taken> pop_due(Clock::time_point now) REQUIRES(mutex) {
    if (pending.empty() || pending.begin()->due > now) return std::nullopt;
    const Pending first = *pending.begin();
    pending.erase(pending.begin());
    QueuedKey& entry = entries[first.key];
    entry.due.reset();
    entry.goes_first = false;
    entry.started_at = now;
    return Taken{first.key, now - first.due};
  }

  std::optional<api::ObjectKey> hand_out(const std::optional<Taken>& taken) const {
    if (!taken) return std::nullopt;
    if (options.on_queued) options.on_queued(taken->waited);
    return taken->key;
  }
};

Workqueue::Workqueue() : Workqueue(Options{}) {}
Workqueue::Workqueue(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Workqueue::~Workqueue() = default;

void Workqueue::add(const api::ObjectKey& key) { add_within(key, Clock::duration::zero()); }

void Workqueue::add_first(const api::ObjectKey& key) { impl_->schedule_and_notify(key, Clock::duration::zero(), true); }

void Workqueue::add_within(const api::ObjectKey& key, Clock::duration delay) {
  impl_->schedule_and_notify(key, std::max(delay, Clock::duration::zero()), false);
}

void Workqueue::add_after(const api::ObjectKey& key, Clock::duration delay) {
  {
    const MutexLock lock(impl_->mutex);
    ++impl_->retries;
  }
  add_within(key, delay);
}

void Workqueue::add_with_backoff(const api::ObjectKey& key, Clock::duration at_least) {
  Clock::duration delay{};
  {
    const MutexLock lock(impl_->mutex);
    delay = std::max<Clock::duration>(at_least, backoff_delay(kBackoff, ++impl_->entries[key].failures, 0.0));
  }
  add_after(key, delay);
}

void Workqueue::forget(const api::ObjectKey& key) {
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->entries.find(key);
  if (found == impl_->entries.end()) return;
  found->second.failures = 0;
  impl_->forget_if_idle(found);
}

std::optional<api::ObjectKey> Workqueue::get(const std::stop_token& stop) {
  std::optional<Impl::Taken> taken;
  {
    MutexLock lock(impl_->mutex);
    while (!stop.stop_requested()) {
      const Clock::time_point now = impl_->options.now();
      taken = impl_->pop_due(now);
      if (taken) break;
      // The wait ends when a key is added, at the first deadline, or with `stop`; the loop checks which.
      const uint64_t seen = impl_->next_order;
      const auto something_came = [&]() REQUIRES(impl_->mutex) { return impl_->next_order != seen; };
      if (impl_->pending.empty()) {
        impl_->changed.wait(lock, stop, something_came);
      } else {
        impl_->changed.wait_for(lock, stop, impl_->pending.begin()->due - now, something_came);
      }
    }
    // This worker may have been the one that was notified of a new deadline; it now leaves, so it notifies another one.
    if (!impl_->pending.empty()) impl_->changed.notify_one();
  }
  return impl_->hand_out(taken);
}

std::optional<api::ObjectKey> Workqueue::try_get() {
  std::optional<Impl::Taken> taken;
  {
    const MutexLock lock(impl_->mutex);
    taken = impl_->pop_due(impl_->options.now());
  }
  return impl_->hand_out(taken);
}

void Workqueue::done(const api::ObjectKey& key) {
  Clock::duration worked{};
  {
    const MutexLock lock(impl_->mutex);
    const auto found = impl_->entries.find(key);
    LOCKSTEP_CHECK(found != impl_->entries.end() && found->second.started_at, "done without get");
    QueuedKey& entry = found->second;
    worked = impl_->options.now() - *entry.started_at;
    entry.started_at.reset();
    if (entry.due) {
      impl_->pending.insert(Impl::pending_of(key, entry));
      ++impl_->next_order;  // makes waiting workers look again
    }
    impl_->forget_if_idle(found);
  }
  if (impl_->options.on_worked) impl_->options.on_worked(worked);
  impl_->changed.notify_one();
}

Workqueue::Statistics Workqueue::statistics() const {
  const Clock::time_point now = impl_->options.now();
  Statistics result;
  const MutexLock lock(impl_->mutex);
  for (const Pending& one : impl_->pending) result.depth += one.due <= now ? 1 : 0;
  result.adds = impl_->adds;
  result.retries = impl_->retries;
  for (const auto& [key, entry] : impl_->entries) {
    if (!entry.started_at) continue;
    const Clock::duration running = now - *entry.started_at;
    result.longest_running = std::max(result.longest_running, running);
    result.unfinished_work += running;
  }
  return result;
}

}  // namespace lockstep::control
