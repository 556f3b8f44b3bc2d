#include "runner/telemetry/metrics.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace lockstep {
namespace {

// 1 ms (a captured step of a small model) to 2 minutes (accumulation on a CPU).
constexpr std::array kStepBuckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                  0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 120.0};
// 10 ms to 10 minutes.
constexpr std::array kSlowBuckets{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0};

void set_if_known(MetricFamilies& families, const MetricName& name, const std::optional<double>& value) {
  if (value) families.set(name, *value);
}

}  // namespace

const char* to_string(StartupPart part) {
  constexpr std::array kNames{"process", "load", "rendezvous", "restore", "first_step"};
  static_assert(kNames.size() == static_cast<size_t>(StartupPart::kFirstStep) + 1);
  return kNames.at(static_cast<size_t>(part));
}

RunMetrics::RunMetrics(int rank, double start_unix_time) : rank_(rank) {
  families_.set(metric::kStartTimestamp, start_unix_time);
  for (const MetricName& name : {metric::kSteps, metric::kSamples, metric::kEvaluations}) families_.add(name, 0.0);
  for (size_t i = 0; i < kPhaseCount; ++i) {
    families_.add(metric::kPhaseSeconds, 0.0, {{"phase", to_string(static_cast<Phase>(i))}});
  }
  families_.add(metric::kSkippedSteps, 0.0, {{"reason", "not_finite"}});
  families_.histogram(metric::kStepDuration, kStepBuckets);
}

void RunMetrics::set_rank(int rank) {
  const MutexLock lock(mutex_);
  rank_ = rank;
}

void RunMetrics::set_target_steps(int64_t steps) {
  const MutexLock lock(mutex_);
  target_steps_ = steps;
  families_.set(metric::kTargetSteps, static_cast<double>(steps));
}

void RunMetrics::on_step(const StepFigures& figures) {
  const MutexLock lock(mutex_);
  const auto step = static_cast<double>(figures.step);
  families_.add(metric::kSteps, 1.0);
  families_.add(metric::kSamples, static_cast<double>(figures.samples));
  families_.observe(metric::kStepDuration, kStepBuckets, figures.seconds);
  families_.set(metric::kStep, step);
  families_.set(metric::kEpoch, figures.epoch);
  families_.set(metric::kLastStepTimestamp, figures.unix_time);
  if (target_steps_ > 0) families_.set(metric::kProgress, step / static_cast<double>(target_steps_));
}

void RunMetrics::on_log(const StepReport& report) {
  const MutexLock lock(mutex_);
  families_.set(metric::kLoss, report.loss, {{"split", "train"}});
  families_.set(metric::kLearningRate, report.lr);
  families_.set(metric::kGradientNorm, report.grad_norm);
  families_.set(metric::kSamplesPerSecond, report.samples_per_second);
  set_if_known(families_, metric::kEstimatedRemaining, report.remaining_seconds);
  set_if_known(families_, metric::kLossScale, report.loss_scale);
  if (!report.flops) return;
  set_if_known(families_, metric::kModelFlops, report.flops->model_flops_per_second);
  set_if_known(families_, metric::kPeakFlops, report.flops->peak_flops_per_second);
  set_if_known(families_, metric::kMfu, report.flops->mfu);
}

void RunMetrics::on_skipped_step(const std::string& reason) {
  const MutexLock lock(mutex_);
  families_.add(metric::kSkippedSteps, 1.0, {{"reason", reason}});
}

void RunMetrics::on_evaluation(const std::vector<std::pair<std::string, double>>& metrics) {
  const MutexLock lock(mutex_);
  families_.add(metric::kEvaluations, 1.0);
  for (const auto& [name, value] : metrics) families_.set(metric::kEvaluationValue, value, {{"metric", name}});
}

void RunMetrics::on_phase_seconds(const PhaseSeconds& seconds) {
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < kPhaseCount; ++i) {
    families_.set(metric::kPhaseSeconds, seconds.seconds[i], {{"phase", to_string(static_cast<Phase>(i))}});
  }
}

void RunMetrics::on_memory(const MemoryFigures& figures) {
  const MutexLock lock(mutex_);
  families_.set(metric::kResidentMemory, figures.resident_bytes);
  if (!figures.device) return;
  families_.set(metric::kDeviceMemory, figures.device->allocated_bytes, {{"kind", "allocated"}});
  families_.set(metric::kDeviceMemory, figures.device->reserved_bytes, {{"kind", "reserved"}});
  families_.set(metric::kDeviceMemory, figures.device->peak_bytes, {{"kind", "peak"}});
  families_.set(metric::kDeviceMemory, figures.device->capacity_bytes, {{"kind", "capacity"}});
}

void RunMetrics::on_checkpoint(const CheckpointFigures& figures) {
  const MutexLock lock(mutex_);
  families_.observe(metric::kCheckpointDuration, kSlowBuckets, figures.stage_seconds, {{"phase", "stage"}});
  families_.observe(metric::kCheckpointDuration, kSlowBuckets, figures.write_seconds, {{"phase", "write"}});
  families_.set(metric::kCheckpointBytes, figures.bytes);
  families_.set(metric::kCheckpointLastSuccess, figures.unix_time);
  families_.set(metric::kCheckpointLastStep, static_cast<double>(figures.step));
}

void RunMetrics::on_checkpoint_failure(const std::string& reason) {
  const MutexLock lock(mutex_);
  families_.add(metric::kCheckpointFailures, 1.0, {{"reason", reason}});
}

void RunMetrics::on_restore(double seconds) {
  const MutexLock lock(mutex_);
  families_.observe(metric::kCheckpointDuration, kSlowBuckets, seconds, {{"phase", "restore"}});
}

void RunMetrics::on_startup(StartupPart part, double seconds) {
  const MutexLock lock(mutex_);
  families_.set(metric::kStartup, seconds, {{"phase", to_string(part)}});
}

void RunMetrics::on_rendezvous(double seconds) {
  const MutexLock lock(mutex_);
  families_.observe(metric::kRendezvousDuration, kSlowBuckets, seconds);
}

std::vector<MetricFamily> RunMetrics::families() const {
  const MutexLock lock(mutex_);
  return families_.of_rank(rank_);
}

double resident_memory_bytes() {
  std::ifstream statm("/proc/self/statm");  // pages: total, resident, …
  double total_pages = 0.0;
  double resident_pages = 0.0;
  statm >> total_pages >> resident_pages;
  return statm ? resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) : 0.0;
}

}  // namespace lockstep
