#include "operator/control/optional_informer.h"

#include <algorithm>
#include <atomic>
#include <stop_token>
#include <thread>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/mutex.h"

namespace lockstep::control {
namespace {

constexpr std::chrono::milliseconds kSyncPollInterval{200};
// After a version is gone, discovery is asked again only after this long: it may still list the version for a moment.
constexpr std::chrono::milliseconds kRediscoveryDelay{1'000};

}  // namespace

struct OptionalInformer::Impl {
  Impl(kube::Client& kube_client, Options given) : client(kube_client), options(std::move(given)) {
    LOCKSTEP_CHECK(!options.versions.empty(), "an optional informer has a version to look for");
  }

  kube::Client& client;
  const Options options;
  std::vector<std::function<void(const Cache<Json>::Change&)>> handlers;  // fixed when the thread starts

  Mutex mutex;
  ConditionVariable changed;
  bool is_wanted GUARDED_BY(mutex) = false;
  bool is_gone GUARDED_BY(mutex) = false;  // the server does not have the version any more
  Kind kind GUARDED_BY(mutex);

  std::jthread thread;  // the last member: it ends before the others go

  void run(const std::stop_token& stop) {
    {
      MutexLock lock(mutex);
      if (!changed.wait(lock, stop, [this]() REQUIRES(mutex) { return is_wanted; })) return;
    }
    while (!stop.stop_requested()) {
      const Result<const kube::Resource*> found = find_version();
      const bool is_served = found.ok() && *found != nullptr;
      if (is_served) {
        follow(**found, stop);
      } else {
        publish({.is_known = found.ok(), .trouble = found.ok() ? "" : found.error().message});
      }
      MutexLock lock(mutex);
      changed.wait_for(lock, stop, is_served ? std::min(kRediscoveryDelay, options.poll_every) : options.poll_every,
                       [] { return false; });
    }
  }

  // nullptr: the server has none of them.
  Result<const kube::Resource*> find_version() {
    for (const kube::Resource& version : options.versions) {
      TRY_ASSIGN(const bool is_served, client.serves(version));
      if (is_served) return &version;
    }
    return nullptr;
  }

  // Keeps a cache of this version until the server does not have it any more.
  void follow(const kube::Resource& resource, const std::stop_token& stop) {
    {
      const MutexLock lock(mutex);
      is_gone = false;
    }
    Informer<Json>::Options informer_options = options.informer;
    informer_options.on_problem = [this, &resource](const ReflectorProblem& problem) {
      handle_problem(resource, problem);
    };
    const auto informer = std::make_shared<Informer<Json>>(client, resource, std::move(informer_options));
    // A handler lets somebody read the cache, so nothing is reported before wanted() returns it.
    std::atomic<bool> reports = false;  // outlives the informer's thread, which is joined below
    for (const auto& handler : handlers) {
      informer->on_change([&handler, &reports](const Cache<Json>::Change& change) {
        if (reports) handler(change);
      });
    }
    informer->start();
    while (!stop.stop_requested() && !gone() && !informer->wait_until_synced(kSyncPollInterval)) continue;
    if (!stop.stop_requested() && !gone()) {
      set_kind({.is_known = true,
                .resource = &resource,
                .cache = std::shared_ptr<Cache<Json>>(informer, &informer->cache())});
      reports = true;
      if (options.on_kind_change) options.on_kind_change();
      for (const ObjectPtr& object : informer->cache().list()) {
        for (const auto& handler : handlers) handler({api::key_of(*object), nullptr, object});
      }
      MutexLock lock(mutex);
      changed.wait(lock, stop, [this]() REQUIRES(mutex) { return is_gone; });
    }
    // Readers may still hold the cache; the thread behind it ends here.
    informer->stop_and_join();
    if (!stop.stop_requested()) publish({.is_known = true});
  }

  bool gone() {
    const MutexLock lock(mutex);
    return is_gone;
  }

  // On the informer's thread.
  void handle_problem(const kube::Resource& resource, const ReflectorProblem& problem) {
    if (problem.reason == kNotServed) {
      const MutexLock lock(mutex);
      is_gone = true;
      changed.notify_all();
      return;
    }
    {
      const MutexLock lock(mutex);
      if (kind.cache || kind.trouble == problem.line) return;  // an informer with a cache goes on
      kind = {.is_known = true, .resource = &resource, .trouble = problem.line};
    }
    if (options.on_kind_change) options.on_kind_change();
  }

  // False: nothing has changed.
  bool set_kind(Kind now) {
    const MutexLock lock(mutex);
    const bool is_same = kind.is_known == now.is_known && kind.resource == now.resource && kind.cache == now.cache &&
                         kind.trouble == now.trouble;
    kind = std::move(now);
    return !is_same;
  }

  void publish(Kind now) {
    if (set_kind(std::move(now)) && options.on_kind_change) options.on_kind_change();
  }
};

OptionalInformer::OptionalInformer(kube::Client& client, Options options)
    : impl_(std::make_unique<Impl>(client, std::move(options))) {}

OptionalInformer::~OptionalInformer() { stop_and_join(); }

void OptionalInformer::on_change(std::function<void(const Cache<Json>::Change&)> handler) {
  LOCKSTEP_CHECK(!impl_->thread.joinable(), "handlers are added before start");
  impl_->handlers.push_back(std::move(handler));
}

void OptionalInformer::start() {
  impl_->thread = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->run(stop); });
}

void OptionalInformer::stop_and_join() {
  if (!impl_->thread.joinable()) return;
  impl_->thread.request_stop();
  impl_->thread.join();
}

const std::vector<kube::Resource>& OptionalInformer::versions() const { return impl_->options.versions; }

OptionalInformer::Kind OptionalInformer::wanted() {
  const MutexLock lock(impl_->mutex);
  if (!std::exchange(impl_->is_wanted, true)) impl_->changed.notify_all();
  return impl_->kind;
}

}  // namespace lockstep::control
