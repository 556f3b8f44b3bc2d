// Metrics: what the operator counts, under the names that controller-runtime and client-go gave them, so that existing
// dashboards and alerts fit.
//
//   controller_runtime_reconcile_total{controller,result}         result: success, error, requeue_after
//   controller_runtime_reconcile_errors_total{controller}
//   controller_runtime_reconcile_panics_total{controller}         exceptions caught
//   controller_runtime_reconcile_time_seconds{controller}
//   controller_runtime_max_concurrent_reconciles{controller}, controller_runtime_active_workers{controller}
//   workqueue_{depth,adds_total,retries_total,queue_duration_seconds,work_duration_seconds,unfinished_work_seconds,
//              longest_running_processor_seconds}{name,controller}
//   rest_client_requests_total{code,method,host}, rest_client_request_duration_seconds{verb,host}
//   leader_election_master_status{name}
//   process_{resident_memory_bytes,virtual_memory_bytes,cpu_seconds_total,open_fds,start_time_seconds}
//
// Every series is there from the start, at zero, as far as its labels are known by then.
// Threads: safe from all threads.
#pragma once

#include <memory>
#include <string>

#include "operator/control/clock.h"
#include "operator/control/workqueue.h"
#include "operator/kube/client.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace lockstep::control {

enum class ReconcileOutcome { kSuccess, kRequeueAfter, kError, kCancelled };

class Metrics {
 public:
  // `controller`: the name of the one controller, and of its queue.
  explicit Metrics(const std::string& controller);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Families of another room; their names are none of those above.
  void add(std::shared_ptr<const prometheus::Collectable> families);
  // Prometheus text format 0.0.4.
  [[nodiscard]] std::string text() const;

  void set_workers(int workers);
  void reconcile_begins();
  // A cancelled one is not counted.
  void reconcile_ends(ReconcileOutcome outcome, Clock::duration took);
  void caught_exception();

  // The two durations of the queue: for its options. The metrics outlive the queue.
  [[nodiscard]] Workqueue::Options queue_options();
  // The queue's other figures are read from it in every call of `text`; call none once the queue is gone.
  void watch_queue(const Workqueue& queue);

  // For ClientOptions::on_request. `host` is the API server's, "10.96.0.1:443".
  [[nodiscard]] std::function<void(const kube::RequestReport&)> request_counter(const std::string& host);

  void set_leader(const std::string& lease, bool leading);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
