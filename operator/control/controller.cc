#include "operator/control/controller.h"

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "operator/control/metrics.h"
#include "runner/base/check.h"

namespace lockstep::control {

struct Controller::Impl {
  Impl(Workqueue& keys, Reconcile reconcile_key, Options controller_options, Metrics* counters)
      : queue(keys), reconcile(std::move(reconcile_key)), options(std::move(controller_options)), metrics(counters) {}

  Workqueue& queue;
  const Reconcile reconcile;
  const Options options;
  Metrics* const metrics;
  std::vector<std::jthread> workers;  // the last member: they end before the others go

  void work(const std::stop_token& stop) {
    while (const std::optional<api::ObjectKey> key = queue.get(stop)) {
      if (metrics != nullptr) metrics->reconcile_begins();
      const Clock::time_point began = Clock::now();
      const ReconcileOutcome outcome = handle(*key);
      if (metrics != nullptr) metrics->reconcile_ends(outcome, Clock::now() - began);
      queue.done(*key);
    }
  }

  ReconcileOutcome handle(const api::ObjectKey& key) {
    const Result<ReconcileResult> result = reconcile_caught(key);
    if (result.ok()) {
      queue.forget(key);
      if (!result->requeue_after) return ReconcileOutcome::kSuccess;
      queue.add_after(key, *result->requeue_after);
      return ReconcileOutcome::kRequeueAfter;
    }
    const Error& error = result.error();
    const bool is_busy = error.code == ErrorCode::kRetry;
    queue.add_with_backoff(key, is_busy ? Clock::duration(kBackoffOfBusyServer) : Clock::duration::zero());
    if (error.code == ErrorCode::kCancelled) return ReconcileOutcome::kCancelled;
    options.logger.error("reconcile failed", {{"controller", options.name},
                                              {"object", to_string(key)},
                                              {"code", to_string(error.code)},
                                              {"error", error.message}});
    return ReconcileOutcome::kError;
  }

  Result<ReconcileResult> reconcile_caught(const api::ObjectKey& key) const {
    try {
      return reconcile(key);
    } catch (const std::exception& exception) {
      if (metrics != nullptr) metrics->caught_exception();
      return invalid("unexpected exception", exception.what());
    }
  }
};

Controller::Controller(Workqueue& queue, Reconcile reconcile, Options options, Metrics* metrics)
    : impl_(std::make_unique<Impl>(queue, std::move(reconcile), std::move(options), metrics)) {
  LOCKSTEP_CHECK(impl_->options.workers >= 1, "a controller has workers");
  if (metrics != nullptr) metrics->set_workers(impl_->options.workers);
}

Controller::~Controller() { stop_and_join(); }

void Controller::start() {
  LOCKSTEP_CHECK(impl_->workers.empty(), "a controller that runs is not started again");
  for (int i = 0; i < impl_->options.workers; ++i) {
    impl_->workers.emplace_back([impl = impl_.get()](const std::stop_token& stop) { impl->work(stop); });
  }
}

void Controller::stop_and_join() {
  for (std::jthread& worker : impl_->workers) worker.request_stop();
  impl_->workers.clear();  // joins
}

}  // namespace lockstep::control
