#include "operator/train/job_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <mutex>
#include <optional>
#include <set>

#include "runner/base/check.h"

namespace lockstep::train {
namespace {

// From a local restart to a queue that is full for an hour.
const prometheus::Histogram::BucketBoundaries kSeconds{0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600};

constexpr api::JobPhase kPhases[] = {api::JobPhase::kPending, api::JobPhase::kSuspended,  api::JobPhase::kStarting,
                                     api::JobPhase::kRunning, api::JobPhase::kRecovering, api::JobPhase::kComplete,
                                     api::JobPhase::kFailed};

std::string failure_reason(const api::TrainJobStatus& status) {
  const api::Condition* failed = status.conditions.find("Failed");
  return status.phase == api::JobPhase::kFailed && failed != nullptr ? failed->reason : "";
}

template <typename Builder>
auto& family(Builder builder, const MetricName& metric, prometheus::Registry& registry) {
  return builder.Name(std::string(metric.name)).Help(std::string(metric.help)).Register(registry);
}

}  // namespace

struct JobMetrics::Impl {
  explicit Impl(prometheus::Registry& registry)
      : jobs(family(prometheus::BuildGauge(), metric::kTrainJobs, registry)),
        infos(family(prometheus::BuildGauge(), metric::kTrainJobInfo, registry)),
        restarts(family(prometheus::BuildCounter(), metric::kTrainJobRestarts, registry)),
        failures(family(prometheus::BuildCounter(), metric::kTrainJobFailures, registry)),
        histograms{
            {&metric::kTrainJobTimeToPodsReady,
             &family(prometheus::BuildHistogram(), metric::kTrainJobTimeToPodsReady, registry)},
            {&metric::kTrainJobTimeToFirstStep,
             &family(prometheus::BuildHistogram(), metric::kTrainJobTimeToFirstStep, registry)},
            {&metric::kTrainJobRecovery, &family(prometheus::BuildHistogram(), metric::kTrainJobRecovery, registry)}} {
    for (const api::JobPhase phase : kPhases) gauge(phase).Set(0);
    // Those without labels are there from the start.
    histograms.at(&metric::kTrainJobTimeToPodsReady)->Add({}, kSeconds);
    histograms.at(&metric::kTrainJobTimeToFirstStep)->Add({}, kSeconds);
  }

  prometheus::Gauge& gauge(api::JobPhase phase) { return jobs.Add({{"phase", to_string(phase)}}); }

  static std::map<std::string, std::string> labels_of(const api::ObjectKey& job) {
    return {{"trainjob_namespace", job.ns}, {"trainjob", job.name}};
  }

  // The series that one TrainJob has at present.
  struct Shown {
    std::optional<api::JobPhase> phase;
    prometheus::Gauge* info = nullptr;
    std::set<prometheus::Counter*> restarts;
  };

  prometheus::Family<prometheus::Gauge>& jobs;
  prometheus::Family<prometheus::Gauge>& infos;
  prometheus::Family<prometheus::Counter>& restarts;
  prometheus::Family<prometheus::Counter>& failures;
  std::map<const MetricName*, prometheus::Family<prometheus::Histogram>*> histograms;
  std::mutex mutex;
  std::map<api::ObjectKey, Shown> shown;  // protected by mutex
};

JobMetrics::JobMetrics(prometheus::Registry& registry) : impl_(std::make_unique<Impl>(registry)) {}
JobMetrics::~JobMetrics() = default;

void JobMetrics::count(const api::ObjectKey& job, const Measurement& m) {
  if (m.metric == &metric::kTrainJobFailures) return impl_->failures.Add(m.labels).Increment(m.value);
  if (m.metric == &metric::kTrainJobRestarts) {
    std::map<std::string, std::string> labels = Impl::labels_of(job);
    labels.insert(m.labels.begin(), m.labels.end());
    const std::lock_guard lock(impl_->mutex);
    prometheus::Counter& counter = impl_->restarts.Add(labels);
    counter.Increment(m.value);
    impl_->shown[job].restarts.insert(&counter);
    return;
  }
  const auto at = impl_->histograms.find(m.metric);
  LOCKSTEP_CHECK(at != impl_->histograms.end(), "a plan measures only what has a family here");
  at->second->Add(m.labels, kSeconds).Observe(m.value);
}

void JobMetrics::show(const api::ObjectKey& job, const api::TrainJobStatus& status) {
  if (!status.phase) return;
  const std::lock_guard lock(impl_->mutex);
  Impl::Shown& shown = impl_->shown[job];
  if (shown.phase == status.phase) return;
  if (shown.phase) impl_->gauge(*shown.phase).Decrement();
  if (shown.info != nullptr) impl_->infos.Remove(shown.info);
  shown.phase = status.phase;
  impl_->gauge(*shown.phase).Increment();
  std::map<std::string, std::string> labels = Impl::labels_of(job);
  labels["phase"] = to_string(*status.phase);
  labels["reason"] = failure_reason(status);
  shown.info = &impl_->infos.Add(labels);
  shown.info->Set(1);
}

void JobMetrics::forget(const api::ObjectKey& job) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->shown.find(job);
  if (at == impl_->shown.end()) return;
  if (at->second.phase) impl_->gauge(*at->second.phase).Decrement();
  if (at->second.info != nullptr) impl_->infos.Remove(at->second.info);
  for (prometheus::Counter* counter : at->second.restarts) impl_->restarts.Remove(counter);
  impl_->shown.erase(at);
}

}  // namespace lockstep::train
