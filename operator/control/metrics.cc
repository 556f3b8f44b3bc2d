#include "operator/control/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "operator/control/process_metrics.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

namespace {

using prometheus::Histogram;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// The buckets of reconcile_time_seconds in controller-runtime.
const Histogram::BucketBoundaries& reconcile_buckets() {
  static const Histogram::BucketBoundaries buckets{
      0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
      1.75,  2.0,  2.5,   3.0,  3.5, 4.0,  4.5, 5,    6,   7,    8,   9,    10,  15,  20,  25,  30,  40,  50,   60};
  return buckets;
}
// The buckets of the two durations in client-go, ExponentialBuckets(10e-9, 10, 12).
const Histogram::BucketBoundaries& queue_buckets() {
  static const Histogram::BucketBoundaries buckets{1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000};
  return buckets;
}
// The buckets of rest_client_request_duration_seconds in component-base.
const Histogram::BucketBoundaries& request_buckets() {
  static const Histogram::BucketBoundaries buckets{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60};
  return buckets;
}

// A family of this name is made once; later calls find it.
prometheus::Family<prometheus::Counter>& counters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
prometheus::Family<prometheus::Gauge>& gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
prometheus::Family<Histogram>& histograms(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

const char* http_method(const std::string& verb) {
  if (verb == "create") return "POST";
  if (verb == "update") return "PUT";
  if (verb == "patch" || verb == "apply") return "PATCH";
  if (verb == "delete") return "DELETE";
  return "GET";
}

// Figures of the queue, read from it at each scrape.
class QueueFigures : public prometheus::Collectable {
 public:
  QueueFigures(std::string name, const Workqueue& queue) : name_(std::move(name)), queue_(queue) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    using Type = prometheus::MetricType;
    std::vector<prometheus::MetricFamily> families{
        {"workqueue_depth", "Current depth of workqueue", Type::Gauge, {}},
        {"workqueue_adds_total", "Total number of adds handled by workqueue", Type::Counter, {}},
        {"workqueue_retries_total", "Total number of retries handled by workqueue", Type::Counter, {}},
        {"workqueue_unfinished_work_seconds",
         "How many seconds of work has been done that is in progress and hasn't been observed by work_duration. "
         "Large values indicate stuck threads.",
         Type::Gauge,
         {}},
        {"workqueue_longest_running_processor_seconds",
         "How many seconds has the longest running processor for workqueue been running.",
         Type::Gauge,
         {}},
    };
    const Workqueue::Statistics figures = queue_.statistics();
    const double values[] = {static_cast<double>(figures.depth), static_cast<double>(figures.adds),
                             static_cast<double>(figures.retries), seconds(figures.unfinished_work),
                             seconds(figures.longest_running)};
    for (size_t i = 0; i < families.size(); ++i) {
      prometheus::ClientMetric metric;
      metric.label = {{"name", name_}, {"controller", name_}};
      (families[i].type == Type::Counter ? metric.counter.value : metric.gauge.value) = values[i];
      families[i].metric.push_back(std::move(metric));
    }
    return families;
  }

 private:
  const std::string name_;
  const Workqueue& queue_;
};

}  // namespace

struct Metrics::Impl {
  explicit Impl(const std::string& controller) : name(controller) {}

  const std::string name;
  prometheus::Registry registry;

  const prometheus::Labels labels{{"controller", name}};
  prometheus::Family<prometheus::Counter>& totals =
      counters(registry, "controller_runtime_reconcile_total", "Total number of reconciliations per controller");
  prometheus::Counter& succeeded = totals.Add({{"controller", name}, {"result", "success"}});
  prometheus::Counter& failed = totals.Add({{"controller", name}, {"result", "error"}});
  prometheus::Counter& requeued = totals.Add({{"controller", name}, {"result", "requeue_after"}});
  prometheus::Counter& errors = counters(registry, "controller_runtime_reconcile_errors_total",
                                         "Total number of reconciliation errors per controller")
                                    .Add(labels);
  prometheus::Counter& panics = counters(registry, "controller_runtime_reconcile_panics_total",
                                         "Total number of reconciliation panics per controller")
                                    .Add(labels);
  prometheus::Gauge& workers = gauges(registry, "controller_runtime_max_concurrent_reconciles",
                                      "Maximum number of concurrent reconciles per controller")
                                   .Add(labels);
  prometheus::Gauge& active =
      gauges(registry, "controller_runtime_active_workers", "Number of currently used workers per controller")
          .Add(labels);
  Histogram& time = histograms(registry, "controller_runtime_reconcile_time_seconds",
                               "Length of time per reconciliation per controller")
                        .Add(labels, reconcile_buckets());

  Mutex mutex;
  std::vector<std::shared_ptr<const prometheus::Collectable>> others GUARDED_BY(mutex){
      std::make_shared<ProcessMetrics>()};
};

Metrics::Metrics(const std::string& controller) : impl_(std::make_unique<Impl>(controller)) {}
Metrics::~Metrics() = default;

void Metrics::add(std::shared_ptr<const prometheus::Collectable> families) {
  const MutexLock lock(impl_->mutex);
  impl_->others.push_back(std::move(families));
}

std::string Metrics::text() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  const MutexLock lock(impl_->mutex);
  for (const std::shared_ptr<const prometheus::Collectable>& other : impl_->others) {
    const std::vector<prometheus::MetricFamily> more = other->Collect();
    families.insert(families.end(), more.begin(), more.end());
  }
  return prometheus::TextSerializer().Serialize(families);
}

void Metrics::set_workers(int workers) { impl_->workers.Set(workers); }

void Metrics::reconcile_begins() { impl_->active.Increment(); }

void Metrics::reconcile_ends(ReconcileOutcome outcome, Clock::duration took) {
  impl_->active.Decrement();
  if (outcome == ReconcileOutcome::kCancelled) return;
  impl_->time.Observe(seconds(took));
  if (outcome == ReconcileOutcome::kSuccess) impl_->succeeded.Increment();
  if (outcome == ReconcileOutcome::kRequeueAfter) impl_->requeued.Increment();
  if (outcome == ReconcileOutcome::kError) {
    impl_->failed.Increment();
    impl_->errors.Increment();
  }
}

void Metrics::caught_exception() { impl_->panics.Increment(); }

Workqueue::Options Metrics::queue_options() {
  const prometheus::Labels labels{{"name", impl_->name}, {"controller", impl_->name}};
  Histogram& queued = histograms(impl_->registry, "workqueue_queue_duration_seconds",
                                 "How long in seconds an item stays in workqueue before being requested")
                          .Add(labels, queue_buckets());
  Histogram& worked = histograms(impl_->registry, "workqueue_work_duration_seconds",
                                 "How long in seconds processing an item from workqueue takes.")
                          .Add(labels, queue_buckets());
  Workqueue::Options options;
  options.on_queued = [&queued](Clock::duration waited) { queued.Observe(seconds(waited)); };
  options.on_worked = [&worked](Clock::duration took) { worked.Observe(seconds(took)); };
  return options;
}

void Metrics::watch_queue(const Workqueue& queue) { add(std::make_shared<QueueFigures>(impl_->name, queue)); }

std::function<void(const kube::RequestReport&)> Metrics::request_counter(const std::string& host) {
  auto& requests = counters(impl_->registry, "rest_client_requests_total",
                            "Number of HTTP requests, partitioned by status code, method, and host.");
  auto& durations = histograms(impl_->registry, "rest_client_request_duration_seconds",
                               "Request latency in seconds, of a watch until it begins. Broken down by verb and host.");
  return [&requests, &durations, host](const kube::RequestReport& report) {
    const char* method = http_method(report.verb);
    // As client-go names an exchange without an answer.
    const std::string code = report.status == 0 ? "<error>" : std::to_string(report.status);
    requests.Add({{"code", code}, {"method", method}, {"host", host}}).Increment();
    durations.Add({{"verb", method}, {"host", host}}, request_buckets()).Observe(report.duration.count());
  };
}

void Metrics::set_leader(const std::string& lease, bool leading) {
  gauges(impl_->registry, "leader_election_master_status",
         "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. "
         "'name' is the string used to identify the lease.")
      .Add({{"name", lease}})
      .Set(leading ? 1 : 0);
}

}  // namespace lockstep::control
