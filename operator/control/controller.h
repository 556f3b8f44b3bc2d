// Controller: workers that take keys from a Workqueue and reconcile them.
//
// After an error, which is logged once and counted, the key comes back with backoff, and after kRetry (a busy server)
// no sooner than kBackoffOfBusyServer. A success resets the backoff, and the key comes back after `requeue_after` if
// there is one. A reconcile that throws (an uncaught exception of a library) counts as failed: one unforeseen object
// must not stop the work on all others. The names of the metrics are controller-runtime's.
//
// Threads: `workers` threads from `start` to `stop_and_join` or the destructor; one key is never on two of them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "operator/control/workqueue.h"
#include "runner/base/log.h"
#include "runner/base/result.h"

namespace lockstep::control {

// After kRetry: the client itself has already retried for seconds, or the server asked for a longer wait than that.
inline constexpr std::chrono::seconds kBackoffOfBusyServer{1};

struct ReconcileResult {
  std::optional<std::chrono::milliseconds> requeue_after;
};

// Called from all workers.
using Reconcile = std::function<Result<ReconcileResult>(const api::ObjectKey&)>;

class Metrics;  // metrics.h

class Controller {
 public:
  struct Options {
    std::string name;  // the label `controller` of the metrics
    int workers = 32;
    Logger logger = Logger::silent();
  };
  // `queue` and `metrics` (may be nullptr) outlive the controller.
  Controller(Workqueue& queue, Reconcile reconcile, Options options, Metrics* metrics);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  void start();
  // Workers finish the key they hold. What fails with kCancelled meanwhile is neither logged nor counted.
  void stop_and_join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
