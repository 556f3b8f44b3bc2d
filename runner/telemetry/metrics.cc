#include "runner/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <string>

#include "runner/base/check.h"
#include "runner/contract/metric_names.h"

namespace lockstep {

namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// 1 ms (a captured step of a small model) to 2 minutes (accumulation on a CPU).
const Histogram::BucketBoundaries kStepBuckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                               0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 120.0};
// 10 ms to 10 minutes.
const Histogram::BucketBoundaries kSlowBuckets{0.01, 0.025, 0.05, 0.1,  0.25, 0.5,   1.0,
                                               2.5,  5.0,   10.0, 30.0, 60.0, 120.0, 600.0};

// `builder`: of prometheus, for the type of the metric.
template <typename Builder>
auto& family_of(Builder builder, MetricType type, prometheus::Registry& registry, const MetricName& name,
                const Labels& labels) {
  LOCKSTEP_CHECK(name.type == type, "declared as another type in metric_names.h");
  return builder.Name(std::string(name.name)).Help(std::string(name.help)).Labels(labels).Register(registry);
}

Family<Counter>& counter(prometheus::Registry& registry, const MetricName& name, const Labels& labels) {
  return family_of(prometheus::BuildCounter(), MetricType::kCounter, registry, name, labels);
}

Family<Gauge>& gauge(prometheus::Registry& registry, const MetricName& name, const Labels& labels) {
  return family_of(prometheus::BuildGauge(), MetricType::kGauge, registry, name, labels);
}

Family<Histogram>& histogram(prometheus::Registry& registry, const MetricName& name, const Labels& labels) {
  return family_of(prometheus::BuildHistogram(), MetricType::kHistogram, registry, name, labels);
}

void set_when_known(Family<Gauge>& family, const std::optional<double>& value) {
  if (value) family.Add({}).Set(*value);
}

MetricType type_of(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return MetricType::kCounter;
    case prometheus::MetricType::Histogram:
      return MetricType::kHistogram;
    default:
      return MetricType::kGauge;
  }
}

MetricSample sample_of(const prometheus::ClientMetric& metric, MetricType type) {
  MetricSample sample;
  for (const auto& label : metric.label) sample.labels[label.name] = label.value;
  switch (type) {
    case MetricType::kCounter:
      sample.value = metric.counter.value;
      break;
    case MetricType::kGauge:
      sample.value = metric.gauge.value;
      break;
    case MetricType::kHistogram:
      sample.count = metric.histogram.sample_count;
      sample.sum = metric.histogram.sample_sum;
      for (const auto& bucket : metric.histogram.bucket)
        sample.buckets.push_back({.upper_bound = bucket.upper_bound, .cumulative_count = bucket.cumulative_count});
      break;
  }
  return sample;
}

}  // namespace

const char* to_string(StartupPart part) {
  switch (part) {
    case StartupPart::kProcess:
      return "process";
    case StartupPart::kLoad:
      return "load";
    case StartupPart::kRendezvous:
      return "rendezvous";
    case StartupPart::kRestore:
      return "restore";
    case StartupPart::kFirstStep:
      return "first_step";
  }
  return "";
}

// A family whose figure may be unknown has no series until the figure is first set. Counters with known labels are
// created with value 0 at once, so that Prometheus' rate() includes their first increment.
struct RunMetrics::Series {
  explicit Series(int of_rank) : rank(of_rank), labels{{"rank", std::to_string(of_rank)}} {
    for (size_t i = 0; i < kPhaseCount; ++i)
      phase_seconds[i] = &phases.Add({{"phase", to_string(static_cast<Phase>(i))}});
    skipped_steps.Add({{"reason", "not_finite"}});
  }

  std::atomic<int> rank;
  Labels labels;
  prometheus::Registry registry;

  Counter& steps = counter(registry, metric::kSteps, labels).Add({});
  Counter& samples = counter(registry, metric::kSamples, labels).Add({});
  Family<Gauge>& step = gauge(registry, metric::kStep, labels);
  Family<Gauge>& epoch = gauge(registry, metric::kEpoch, labels);
  Family<Gauge>& target_steps = gauge(registry, metric::kTargetSteps, labels);
  Family<Gauge>& progress = gauge(registry, metric::kProgress, labels);
  Family<Gauge>& remaining = gauge(registry, metric::kEstimatedRemaining, labels);
  Family<Gauge>& last_step_time = gauge(registry, metric::kLastStepTimestamp, labels);
  Gauge& start_time = gauge(registry, metric::kStartTimestamp, labels).Add({});

  Histogram& step_duration = histogram(registry, metric::kStepDuration, labels).Add({}, kStepBuckets);
  Family<Counter>& phases = counter(registry, metric::kPhaseSeconds, labels);
  std::array<Counter*, kPhaseCount> phase_seconds{};
  Family<Gauge>& samples_per_second = gauge(registry, metric::kSamplesPerSecond, labels);
  Family<Gauge>& model_flops = gauge(registry, metric::kModelFlops, labels);
  Family<Gauge>& peak_flops = gauge(registry, metric::kPeakFlops, labels);
  Family<Gauge>& mfu = gauge(registry, metric::kMfu, labels);

  Family<Gauge>& loss = gauge(registry, metric::kLoss, labels);
  Family<Gauge>& gradient_norm = gauge(registry, metric::kGradientNorm, labels);
  Family<Gauge>& learning_rate = gauge(registry, metric::kLearningRate, labels);
  Family<Gauge>& loss_scale = gauge(registry, metric::kLossScale, labels);
  Family<Counter>& skipped_steps = counter(registry, metric::kSkippedSteps, labels);
  Counter& evaluations = counter(registry, metric::kEvaluations, labels).Add({});
  Family<Gauge>& evaluation_value = gauge(registry, metric::kEvaluationValue, labels);

  Family<Gauge>& device_memory = gauge(registry, metric::kDeviceMemory, labels);
  Family<Gauge>& resident_memory = gauge(registry, metric::kResidentMemory, labels);

  Family<Histogram>& checkpoint_duration = histogram(registry, metric::kCheckpointDuration, labels);
  Family<Gauge>& checkpoint_bytes = gauge(registry, metric::kCheckpointBytes, labels);
  Family<Gauge>& checkpoint_time = gauge(registry, metric::kCheckpointLastSuccess, labels);
  Family<Gauge>& checkpoint_step = gauge(registry, metric::kCheckpointLastStep, labels);
  Family<Counter>& checkpoint_failures = counter(registry, metric::kCheckpointFailures, labels);

  Family<Gauge>& startup = gauge(registry, metric::kStartup, labels);
  Family<Histogram>& rendezvous = histogram(registry, metric::kRendezvousDuration, labels);

  std::atomic<int64_t> target{0};
};

RunMetrics::RunMetrics(int rank, double start_unix_time) : series_(std::make_unique<Series>(rank)) {
  series_->start_time.Set(start_unix_time);
}

RunMetrics::~RunMetrics() = default;

void RunMetrics::set_rank(int rank) { series_->rank.store(rank); }

void RunMetrics::set_target_steps(int64_t steps) {
  series_->target = steps;
  series_->target_steps.Add({}).Set(static_cast<double>(steps));
}

void RunMetrics::on_step(const StepFigures& figures) {
  series_->steps.Increment();
  series_->samples.Increment(static_cast<double>(figures.samples));
  series_->step_duration.Observe(figures.seconds);
  series_->step.Add({}).Set(static_cast<double>(figures.step));
  series_->epoch.Add({}).Set(figures.epoch);
  series_->last_step_time.Add({}).Set(figures.unix_time);
  const int64_t target = series_->target;
  if (target > 0) series_->progress.Add({}).Set(static_cast<double>(figures.step) / static_cast<double>(target));
}

void RunMetrics::on_log(const StepReport& report) {
  series_->loss.Add({{"split", "train"}}).Set(report.loss);
  series_->learning_rate.Add({}).Set(report.lr);
  series_->gradient_norm.Add({}).Set(report.grad_norm);
  series_->samples_per_second.Add({}).Set(report.samples_per_second);
  set_when_known(series_->remaining, report.remaining_seconds);
  set_when_known(series_->loss_scale, report.loss_scale);
  if (!report.flops) return;
  set_when_known(series_->model_flops, report.flops->model_flops_per_second);
  set_when_known(series_->peak_flops, report.flops->peak_flops_per_second);
  set_when_known(series_->mfu, report.flops->mfu);
}

void RunMetrics::on_skipped_step(const std::string& reason) {
  series_->skipped_steps.Add({{"reason", reason}}).Increment();
}

void RunMetrics::on_evaluation(const std::vector<std::pair<std::string, double>>& metrics) {
  series_->evaluations.Increment();
  for (const auto& [name, value] : metrics) series_->evaluation_value.Add({{"metric", name}}).Set(value);
}

void RunMetrics::on_phase_seconds(const PhaseSeconds& seconds) {
  for (size_t i = 0; i < kPhaseCount; ++i) {
    Counter& spent = *series_->phase_seconds[i];
    spent.Increment(seconds.seconds[i] - spent.Value());
  }
}

void RunMetrics::on_memory(const MemoryFigures& figures) {
  series_->resident_memory.Add({}).Set(figures.resident_bytes);
  if (!figures.device) return;
  const auto set = [this](const char* kind, double bytes) { series_->device_memory.Add({{"kind", kind}}).Set(bytes); };
  set("allocated", figures.device->allocated_bytes);
  set("reserved", figures.device->reserved_bytes);
  set("peak", figures.device->peak_bytes);
  set("capacity", figures.device->capacity_bytes);
}

void RunMetrics::on_checkpoint(const CheckpointFigures& figures) {
  series_->checkpoint_duration.Add({{"phase", "stage"}}, kSlowBuckets).Observe(figures.stage_seconds);
  series_->checkpoint_duration.Add({{"phase", "write"}}, kSlowBuckets).Observe(figures.write_seconds);
  series_->checkpoint_bytes.Add({}).Set(figures.bytes);
  series_->checkpoint_time.Add({}).Set(figures.unix_time);
  series_->checkpoint_step.Add({}).Set(static_cast<double>(figures.step));
}

void RunMetrics::on_checkpoint_failure(const std::string& reason) {
  series_->checkpoint_failures.Add({{"reason", reason}}).Increment();
}

void RunMetrics::on_restore(double seconds) {
  series_->checkpoint_duration.Add({{"phase", "restore"}}, kSlowBuckets).Observe(seconds);
}

void RunMetrics::on_startup(StartupPart part, double seconds) {
  series_->startup.Add({{"phase", to_string(part)}}).Set(seconds);
}

void RunMetrics::on_rendezvous(double seconds) { series_->rendezvous.Add({}, kSlowBuckets).Observe(seconds); }

const prometheus::Registry& RunMetrics::registry() const { return series_->registry; }

std::vector<MetricFamily> RunMetrics::families() const {
  std::vector<MetricFamily> families;
  for (const prometheus::MetricFamily& collected : series_->registry.Collect()) {
    if (collected.metric.empty()) continue;
    MetricFamily family{.name = collected.name, .help = collected.help, .type = type_of(collected.type), .metrics = {}};
    for (const auto& metric : collected.metric) {
      family.metrics.push_back(sample_of(metric, family.type));
      family.metrics.back().labels["rank"] = std::to_string(series_->rank.load());
    }
    families.push_back(std::move(family));
  }
  return families;
}

double resident_memory_bytes() {
  std::ifstream statm("/proc/self/statm");  // pages: total, resident, …
  double total_pages = 0.0;
  double resident_pages = 0.0;
  statm >> total_pages >> resident_pages;
  return statm ? resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) : 0.0;
}

}  // namespace lockstep
