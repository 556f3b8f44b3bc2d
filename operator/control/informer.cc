#include "operator/control/informer.h"

#include <deque>
#include <thread>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

struct Informer::Impl {
  Impl(kube::Client& kube_client, kube::Resource watched, Options informer_options)
      : client(kube_client),
        resource(std::move(watched)),
        options(std::move(informer_options)),
        cache(options.trim, options.index, options.now),
        state(options.random) {}

  kube::Client& client;
  const kube::Resource resource;
  const Options options;
  Cache cache;
  std::vector<std::function<void(const Cache::Change&)>> handlers;  // fixed when the thread starts

  // Of the thread alone.
  ReflectorState state;
  std::deque<ReflectorEvent> events;

  Mutex mutex;
  ConditionVariable changed;

  std::jthread thread;  // the last member: it ends before the others go

  void run(const std::stop_token& stop) {
    events.emplace_back(ReflectorStarted{});
    while (!events.empty() && !stop.stop_requested()) {
      ReflectorEvent event = std::move(events.front());
      events.pop_front();
      carry_out(step(state, std::move(event), options.now()), stop);
    }
  }

  void carry_out(std::vector<ReflectorOutput> outputs, const std::stop_token& stop) {
    for (ReflectorOutput& output : outputs) {
      std::visit([&](auto& wanted) { carry_out_one(wanted, stop); }, output);
    }
  }

  void carry_out_one(const ListAll&, const std::stop_token&) {
    kube::ListOptions list;
    list.ns = options.ns;
    list.label_selector = options.label_selector;
    list.trim = options.trim;
    Result<kube::ObjectList> objects = client.list(resource, list);
    if (objects.ok()) {
      events.emplace_back(Listed{std::move(objects->resource_version), std::move(objects->items)});
    } else {
      events.emplace_back(ListFailed{objects.error()});
    }
  }

  void carry_out_one(const WatchFrom& from, const std::stop_token& stop) {
    kube::WatchOptions watch;
    watch.ns = options.ns;
    watch.label_selector = options.label_selector;
    watch.resource_version = from.version;
    Status status = client.watch(
        resource, watch,
        [&](kube::WatchEvent event) { carry_out(step(state, WatchBrought{std::move(event)}, options.now()), stop); },
        stop);
    events.emplace_back(WatchEnded{std::move(status)});
  }

  void carry_out_one(ReplaceCache& with, const std::stop_token&) {
    for (const Cache::Change& change : cache.replace(std::move(with.objects), with.version)) notify(change);
    {
      const MutexLock lock(mutex);  // no waiter may be between its check and its wait now
    }
    changed.notify_all();
  }

  void carry_out_one(PutIntoCache& put, const std::stop_token&) { notify(cache.put(std::move(put.object))); }
  void carry_out_one(const EraseFromCache& erase, const std::stop_token&) { notify(cache.erase(erase.object)); }
  void carry_out_one(const AdvanceCache& advance, const std::stop_token&) { cache.advance(advance.version); }

  void carry_out_one(const WaitUntil& wait, const std::stop_token& stop) {
    MutexLock lock(mutex);
    changed.wait_for(lock, stop, wait.at - options.now(), [] { return false; });
    events.emplace_back(ReflectorTimer{});
  }

  void carry_out_one(const ReflectorProblem& problem, const std::stop_token&) {
    if (options.on_problem) options.on_problem(problem);
    const std::string line = problem.line + "; " + problem.next;
    const LogFields fields{{"resource", resource.plural}, {"reason", problem.reason}};
    // Normal: etcd was compacted between two watches.
    if (problem.reason == "Gone") {
      options.logger.info(line, fields);
    } else {
      options.logger.warning(line, fields);
    }
  }

  void notify(const Cache::Change& change) const {
    if (change.before == change.after) return;
    for (const auto& handler : handlers) handler(change);
  }
};

Informer::Informer(kube::Client& client, kube::Resource resource, Options options)
    : impl_(std::make_unique<Impl>(client, std::move(resource), std::move(options))) {}

Informer::~Informer() { stop_and_join(); }

void Informer::on_change(std::function<void(const Cache::Change&)> handler) {
  LOCKSTEP_CHECK(!impl_->thread.joinable(), "handlers are added before start");
  impl_->handlers.push_back(std::move(handler));
}

void Informer::start() {
  LOCKSTEP_CHECK(impl_->state.phase == ReflectorPhase::kNew && !impl_->thread.joinable(), "an informer starts once");
  impl_->thread = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->run(stop); });
}

void Informer::stop_and_join() {
  if (!impl_->thread.joinable()) return;
  impl_->thread.request_stop();
  impl_->thread.join();
}

Cache& Informer::cache() { return impl_->cache; }

bool Informer::wait_until_synced(std::chrono::milliseconds timeout) {
  MutexLock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, timeout, [this] { return impl_->cache.synced(); });
}

}  // namespace lockstep::control
