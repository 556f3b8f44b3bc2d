#include "operator/train/job_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <optional>
#include <string>

#include "runner/base/check.h"
#include "runner/base/mutex.h"

namespace lockstep::train {
namespace {

// From a local restart to a queue that is full for an hour.
const prometheus::Histogram::BucketBoundaries kSeconds{0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600};

constexpr api::JobPhase kPhases[] = {api::JobPhase::kPending, api::JobPhase::kSuspended,  api::JobPhase::kStarting,
                                     api::JobPhase::kRunning, api::JobPhase::kRecovering, api::JobPhase::kComplete,
                                     api::JobPhase::kFailed};

std::string failure_reason(const api::TrainJobStatus& status) {
  return status.phase == api::JobPhase::kFailed ? status.conditions.reason_of(api::condition::kFailed) : "";
}

template <typename Builder>
auto& family(Builder builder, const MetricName& metric, prometheus::Registry& registry) {
  return builder.Name(std::string(metric.name)).Help(std::string(metric.help)).Register(registry);
}

using Labels = std::map<std::string, std::string>;

prometheus::MetricFamily empty_family(const MetricName& metric, prometheus::MetricType type) {
  return {std::string(metric.name), std::string(metric.help), type, {}};
}

prometheus::ClientMetric series_of(const api::ObjectKey& job, const Labels& labels) {
  prometheus::ClientMetric series;
  for (const auto& [name, value] : labels) series.label.push_back({name, value});
  series.label.push_back({"trainjob", job.name});
  series.label.push_back({"trainjob_namespace", job.ns});
  return series;
}

}  // namespace

// prometheus::Family searches all its series to remove one. The series of a job, which change with its phase, are
// therefore no family's: they are made from `shown` when they are collected.
struct JobMetrics::Impl {
  Impl()
      : jobs(family(prometheus::BuildGauge(), metric::kTrainJobs, registry)),
        failures(family(prometheus::BuildCounter(), metric::kTrainJobFailures, registry)),
        completions(family(prometheus::BuildCounter(), metric::kTrainJobCompletions, registry)),
        histograms{
            {&metric::kTrainJobTimeToPodsReady,
             &family(prometheus::BuildHistogram(), metric::kTrainJobTimeToPodsReady, registry)},
            {&metric::kTrainJobTimeToFirstStep,
             &family(prometheus::BuildHistogram(), metric::kTrainJobTimeToFirstStep, registry)},
            {&metric::kTrainJobRecovery, &family(prometheus::BuildHistogram(), metric::kTrainJobRecovery, registry)}} {
    for (const api::JobPhase phase : kPhases) gauge(phase).Set(0);
    // Those without labels are there from the start.
    completions.Add({});
    histograms.at(&metric::kTrainJobTimeToPodsReady)->Add({}, kSeconds);
    histograms.at(&metric::kTrainJobTimeToFirstStep)->Add({}, kSeconds);
  }

  prometheus::Gauge& gauge(api::JobPhase phase) { return jobs.Add({{"phase", to_string(phase)}}); }

  struct Job {
    std::optional<api::JobPhase> phase;
    std::string failure_reason;
    std::map<Labels, double> restarts;
  };

  prometheus::Registry registry;
  prometheus::Family<prometheus::Gauge>& jobs;
  prometheus::Family<prometheus::Counter>& failures;
  prometheus::Family<prometheus::Counter>& completions;
  std::map<const MetricName*, prometheus::Family<prometheus::Histogram>*> histograms;
  mutable Mutex mutex;
  std::map<api::ObjectKey, Job> shown GUARDED_BY(mutex);
};

JobMetrics::JobMetrics() : impl_(std::make_unique<Impl>()) {}
JobMetrics::~JobMetrics() = default;

void JobMetrics::count(const api::ObjectKey& job, const Measurement& m) {
  if (m.metric == &metric::kTrainJobFailures) return impl_->failures.Add(m.labels).Increment(m.value);
  if (m.metric == &metric::kTrainJobCompletions) return impl_->completions.Add({}).Increment(m.value);
  if (m.metric == &metric::kTrainJobRestarts) {
    const MutexLock lock(impl_->mutex);
    impl_->shown[job].restarts[m.labels] += m.value;
    return;
  }
  const auto at = impl_->histograms.find(m.metric);
  LOCKSTEP_CHECK(at != impl_->histograms.end(), "a plan measures only what has a family here");
  at->second->Add(m.labels, kSeconds).Observe(m.value);
}

void JobMetrics::show(const api::ObjectKey& job, const api::TrainJobStatus& status) {
  if (!status.phase) return;
  const MutexLock lock(impl_->mutex);
  Impl::Job& shown = impl_->shown[job];
  if (shown.phase == status.phase) return;
  if (shown.phase) impl_->gauge(*shown.phase).Decrement();
  shown.phase = status.phase;
  shown.failure_reason = failure_reason(status);
  impl_->gauge(*shown.phase).Increment();
}

void JobMetrics::forget(const api::ObjectKey& job) {
  const MutexLock lock(impl_->mutex);
  const auto at = impl_->shown.find(job);
  if (at == impl_->shown.end()) return;
  if (at->second.phase) impl_->gauge(*at->second.phase).Decrement();
  impl_->shown.erase(at);
}

std::vector<prometheus::MetricFamily> JobMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  prometheus::MetricFamily infos = empty_family(metric::kTrainJobInfo, prometheus::MetricType::Gauge);
  prometheus::MetricFamily restarts = empty_family(metric::kTrainJobRestarts, prometheus::MetricType::Counter);
  const MutexLock lock(impl_->mutex);
  for (const auto& [key, job] : impl_->shown) {
    if (job.phase) {
      prometheus::ClientMetric& info =
          infos.metric.emplace_back(series_of(key, {{"phase", to_string(*job.phase)}, {"reason", job.failure_reason}}));
      info.gauge.value = 1;
    }
    for (const auto& [labels, count] : job.restarts) {
      restarts.metric.emplace_back(series_of(key, labels)).counter.value = count;
    }
  }
  families.push_back(std::move(infos));
  families.push_back(std::move(restarts));
  return families;
}

}  // namespace lockstep::train
