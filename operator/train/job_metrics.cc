#include "operator/train/job_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <mutex>

#include "runner/base/check.h"

namespace lockstep::train {
namespace {

// From a local restart to a queue that is full for an hour.
const prometheus::Histogram::BucketBoundaries kSeconds{0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600};

constexpr api::JobPhase kPhases[] = {api::JobPhase::kPending, api::JobPhase::kSuspended,  api::JobPhase::kStarting,
                                     api::JobPhase::kRunning, api::JobPhase::kRecovering, api::JobPhase::kComplete,
                                     api::JobPhase::kFailed};

template <typename Builder>
auto& family(Builder builder, const MetricName& metric, prometheus::Registry& registry) {
  return builder.Name(std::string(metric.name)).Help(std::string(metric.help)).Register(registry);
}

}  // namespace

struct JobMetrics::Impl {
  explicit Impl(prometheus::Registry& registry)
      : jobs(family(prometheus::BuildGauge(), metric::kTrainJobs, registry)),
        counters{
            {&metric::kTrainJobRestarts, &family(prometheus::BuildCounter(), metric::kTrainJobRestarts, registry)},
            {&metric::kTrainJobFailures, &family(prometheus::BuildCounter(), metric::kTrainJobFailures, registry)}},
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

  prometheus::Family<prometheus::Gauge>& jobs;
  std::map<const MetricName*, prometheus::Family<prometheus::Counter>*> counters;
  std::map<const MetricName*, prometheus::Family<prometheus::Histogram>*> histograms;
  std::mutex mutex;
  std::map<api::ObjectKey, api::JobPhase> phases;  // protected by mutex
};

JobMetrics::JobMetrics(prometheus::Registry& registry) : impl_(std::make_unique<Impl>(registry)) {}
JobMetrics::~JobMetrics() = default;

void JobMetrics::count(const Measurement& m) {
  if (const auto counter = impl_->counters.find(m.metric); counter != impl_->counters.end()) {
    return counter->second->Add(m.labels).Increment(m.value);
  }
  const auto at = impl_->histograms.find(m.metric);
  LOCKSTEP_CHECK(at != impl_->histograms.end(), "a plan measures only what has a family here");
  at->second->Add(m.labels, kSeconds).Observe(m.value);
}

void JobMetrics::set_phase(const api::ObjectKey& job, api::JobPhase phase) {
  const std::lock_guard lock(impl_->mutex);
  const auto [at, is_new] = impl_->phases.try_emplace(job, phase);
  if (!is_new) {
    if (at->second == phase) return;
    impl_->gauge(at->second).Decrement();
    at->second = phase;
  }
  impl_->gauge(phase).Increment();
}

void JobMetrics::forget(const api::ObjectKey& job) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->phases.find(job);
  if (at == impl_->phases.end()) return;
  impl_->gauge(at->second).Decrement();
  impl_->phases.erase(at);
}

}  // namespace lockstep::train
