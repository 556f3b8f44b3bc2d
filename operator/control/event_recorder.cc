#include "operator/control/event_recorder.h"

#include <thread>
#include <utility>

#include "operator/control/backoff.h"
#include "operator/control/event_aggregator.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

namespace {

constexpr std::chrono::seconds kFlushMax{2};
// Waits between attempts; each fails only after the client has retried for its `retry_for`.
constexpr BackoffPolicy kWriteBackoff{.first = std::chrono::seconds(1), .max = std::chrono::seconds(30), .jitter = 1.0};

bool worth_another_try(const Error& error) {
  return error.code == ErrorCode::kRetry || error.code == ErrorCode::kUnavailable;
}

api::UnixSeconds system_wall() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

struct EventRecorder::Impl {
  Impl(kube::Client& kube_client, Options recorder_options)
      : client(kube_client), options(std::move(recorder_options)), aggregator(options.component) {}

  kube::Client& client;
  const Options options;

  mutable Mutex mutex;
  ConditionVariable changed;
  EventAggregator aggregator GUARDED_BY(mutex);
  uint64_t recorded GUARDED_BY(mutex) = 0;

  int failures = 0;  // of the thread alone: in a row

  std::jthread thread;  // the last member: it ends before the others go

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (const std::optional<EventWrite> write = wait_for_turn(stop); write) carry_out(*write);
    }
    const Clock::time_point until = options.now() + kFlushMax;
    while (options.now() < until) {
      const std::optional<EventWrite> write = next(true);
      // After one failure the other Events are dropped: the API server will hardly answer within the 2 s that are left.
      if (!write || !carry_out(*write)) break;
    }
  }

  std::optional<EventWrite> next(bool all) {
    const MutexLock lock(mutex);
    return aggregator.next(options.now(), all);
  }

  std::optional<EventWrite> wait_for_turn(const std::stop_token& stop) {
    MutexLock lock(mutex);
    const uint64_t seen = recorded;
    const auto something_came = [&]() REQUIRES(mutex) { return recorded != seen; };
    const Clock::time_point now = options.now();
    if (std::optional<EventWrite> write = aggregator.next(now); write) return write;
    if (const std::optional<Clock::time_point> due = aggregator.due_at(); due) {
      changed.wait_for(lock, stop, *due - now, something_came);
    } else {
      changed.wait(lock, stop, something_came);
    }
    return std::nullopt;
  }

  // False when the API server cannot be reached.
  bool carry_out(const EventWrite& write) {
    const Json event = event_object(write.series, options);
    const api::ObjectKey key = api::key_of(event);
    const Result<Json> stored = write.kind == EventWrite::Kind::kCreate
                                    ? client.create(kube::kEvents, event)
                                    : client.merge_patch(kube::kEvents, key, event_patch(write.series));
    if (!stored.ok() && write.kind == EventWrite::Kind::kCreate && stored.error().code == ErrorCode::kExists) {
      return find_existing(write, key);
    }
    if (!stored.ok() && write.kind == EventWrite::Kind::kUpdate && stored.error().code == ErrorCode::kNotFound) {
      const MutexLock lock(mutex);
      aggregator.on_gone(write, options.now());
      return true;
    }
    if (!stored.ok()) return fail(write, stored.error());
    failures = 0;
    const MutexLock lock(mutex);
    aggregator.on_written(write, options.now());
    return true;
  }

  bool find_existing(const EventWrite& write, const api::ObjectKey& key) {
    const Result<Json> there = client.get(kube::kEvents, key);
    // Deleted between the two requests: it is created again.
    if (!there.ok() && there.error().code != ErrorCode::kNotFound) return fail(write, there.error());
    failures = 0;
    const MutexLock lock(mutex);
    if (there.ok() && is_this_write(*there, write)) {
      aggregator.on_written(write, options.now());
    } else {
      aggregator.on_exists(write, there.ok() ? number_field(*there, {"count"}).value_or(0) : 0, options.now());
    }
    return true;
  }

  // Was the existing Event made by this very create? Then its answer was lost, and the transport sent it a second time.
  [[nodiscard]] bool is_this_write(const Json& there, const EventWrite& write) const {
    return !options.instance.empty() && there.value("reportingInstance", Json()) == options.instance &&
           there.value("firstTimestamp", Json()) == api::format_time(write.series.first);
  }

  bool fail(const EventWrite& write, const Error& error) {
    std::optional<Clock::time_point> again;
    if (worth_another_try(error)) {
      again = options.now() + backoff_delay(kWriteBackoff, ++failures, options.random());
    }
    options.logger.warning(again ? "an event could not be written yet" : "an event was refused",
                           {{"event", write.series.name},
                            {"object", to_string(write.series.about.key)},
                            {"reason", write.series.text.reason},
                            {"error", error.message}});
    const MutexLock lock(mutex);
    aggregator.on_failed(write, again);
    return !again;
  }
};

EventRecorder::EventRecorder(kube::Client& client, Options options) {
  if (!options.wall) options.wall = system_wall;
  impl_ = std::make_unique<Impl>(client, std::move(options));
  impl_->thread = std::jthread([impl = impl_.get()](const std::stop_token& stop) { impl->run(stop); });
}

EventRecorder::~EventRecorder() {
  impl_->thread.request_stop();
  impl_->thread.join();
}

void EventRecorder::record(const ObjectReference& about, EventText text) {
  {
    const MutexLock lock(impl_->mutex);
    impl_->aggregator.record(about, std::move(text), impl_->options.now(), impl_->options.wall());
    ++impl_->recorded;
  }
  impl_->changed.notify_one();
}

}  // namespace lockstep::control
