// Informer: keeps a Cache equal to what the API server has of one resource, and says which objects changed.
//
// The decisions (list, watch from here, start again, wait) are reflector.h's; this is the thread that carries them out.
// Threads: one of its own, from `start` to `stop_and_join` or the destructor; handlers run on it and must be quick. The
// cache may be read from all threads, also after the end. Stopping ends a watch at once; a list that is under way is
// waited for, as long as the client's `retry_for` and time-outs allow.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "operator/control/cache.h"
#include "operator/control/reflector.h"
#include "operator/kube/client.h"
#include "runner/base/check.h"
#include "runner/base/log.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

template <typename View>
class Informer {
 public:
  using Change = typename Cache<View>::Change;
  struct Options {
    std::string ns;  // empty: all namespaces
    std::string label_selector;
    typename Cache<View>::Read read;
    typename Cache<View>::Index index;
    Logger logger = Logger::silent();
    // Called on the informer's thread, for example to say in /readyz why there is no list yet.
    std::function<void(const ReflectorProblem& problem)> on_problem;
    Now now = Clock::now;
    Random random = system_random();
  };
  // `client` outlives the informer.
  Informer(kube::Client& client, kube::Resource resource, Options options)
      : client_(client),
        resource_(std::move(resource)),
        options_(std::move(options)),
        cache_(options_.read, options_.index, options_.now),
        state_(options_.random) {}
  ~Informer() { stop_and_join(); }
  Informer(const Informer&) = delete;
  Informer& operator=(const Informer&) = delete;

  // Before `start`. Called once for every object of the first list, too.
  void on_change(std::function<void(const Change&)> handler) {
    LOCKSTEP_CHECK(!thread_.joinable(), "handlers are added before start");
    handlers_.push_back(std::move(handler));
  }

  void start() {
    LOCKSTEP_CHECK(state_.phase == ReflectorPhase::kNew && !thread_.joinable(), "an informer starts once");
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  void stop_and_join() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
  }

  [[nodiscard]] const kube::Resource& resource() const { return resource_; }
  [[nodiscard]] Cache<View>& cache() { return cache_; }

  // Waits until a whole list has arrived, or `timeout`.
  [[nodiscard]] bool wait_until_synced(std::chrono::milliseconds timeout) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return cache_.synced(); });
  }

 private:
  void run(const std::stop_token& stop) {
    events_.emplace_back(ReflectorStarted{});
    while (!events_.empty() && !stop.stop_requested()) {
      ReflectorEvent event = std::move(events_.front());
      events_.pop_front();
      carry_out(step(state_, std::move(event), options_.now()), stop);
    }
  }

  void carry_out(std::vector<ReflectorOutput> outputs, const std::stop_token& stop) {
    for (ReflectorOutput& output : outputs) {
      std::visit([&](auto& wanted) { carry_out_one(wanted, stop); }, output);
    }
  }

  void carry_out_one(const ListAll&, const std::stop_token&) {
    kube::ListOptions list;
    list.ns = options_.ns;
    list.label_selector = options_.label_selector;
    list.on_begin = [this] { listed_.clear(); };
    list.on_item = [this](Json object) { cache_.add(std::move(object), listed_); };
    Result<kube::ObjectList> all = client_.list(resource_, list);
    if (all.ok()) {
      events_.emplace_back(Listed{std::move(all->resource_version)});
    } else {
      events_.emplace_back(ListFailed{all.error()});
    }
  }

  void carry_out_one(const WatchFrom& from, const std::stop_token& stop) {
    kube::WatchOptions watch;
    watch.ns = options_.ns;
    watch.label_selector = options_.label_selector;
    watch.resource_version = from.version;
    Status status = client_.watch(
        resource_, watch,
        [&](kube::WatchEvent event) { carry_out(step(state_, WatchBrought{std::move(event)}, options_.now()), stop); },
        stop);
    events_.emplace_back(WatchEnded{std::move(status)});
  }

  void carry_out_one(const ReplaceCache& with, const std::stop_token&) {
    for (const Change& change : cache_.replace(std::exchange(listed_, {}), with.version)) notify(change);
    {
      const MutexLock lock(mutex_);  // no waiter may be between its check and its wait now
    }
    changed_.notify_all();
  }

  void carry_out_one(PutIntoCache& put, const std::stop_token&) { notify(cache_.put(std::move(put.object))); }
  void carry_out_one(const EraseFromCache& erase, const std::stop_token&) { notify(cache_.erase(erase.object)); }
  void carry_out_one(const AdvanceCache& advance, const std::stop_token&) { cache_.advance(advance.version); }

  void carry_out_one(const WaitUntil& wait, const std::stop_token& stop) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, stop, wait.at - options_.now(), [] { return false; });
    events_.emplace_back(ReflectorTimer{});
  }

  void carry_out_one(const ReflectorProblem& problem, const std::stop_token&) {
    if (options_.on_problem) options_.on_problem(problem);
    const std::string line = problem.line + "; " + problem.next;
    const LogFields fields{{"resource", resource_.plural}, {"reason", problem.reason}};
    // Normal: etcd was compacted between two watches.
    if (problem.reason == "Gone") {
      options_.logger.info(line, fields);
    } else {
      options_.logger.warning(line, fields);
    }
  }

  void notify(const Change& change) const {
    if (change.before == change.after) return;
    for (const auto& handler : handlers_) handler(change);
  }

  kube::Client& client_;
  const kube::Resource resource_;
  const Options options_;
  Cache<View> cache_;
  std::vector<std::function<void(const Change&)>> handlers_;  // fixed when the thread starts

  // Of the thread alone.
  ReflectorState state_;
  std::deque<ReflectorEvent> events_;
  typename Cache<View>::Listing listed_;  // by the list that is under way, or has just ended

  Mutex mutex_;
  ConditionVariable changed_;

  std::jthread thread_;  // the last member: it ends before the others go
};

}  // namespace lockstep::control
