#include "runner/agent/agent_metrics.h"

#include <limits>

#include "runner/base/build_info.h"
#include "runner/contract/metric_names.h"

namespace lockstep {
namespace {

constexpr uint64_t kCounterMask = 0xffff'ffff;  // the lower half of a generation

MetricFamily family_of(const MetricName& name, std::vector<MetricSample> samples) {
  return MetricFamily{
      .name = std::string(name.name), .help = std::string(name.help), .type = name.type, .metrics = std::move(samples)};
}

MetricSample sample_of(std::map<std::string, std::string> labels, double value) {
  MetricSample sample;
  sample.labels = std::move(labels);
  sample.value = value;
  return sample;
}

MetricFamily single(const MetricName& name, double value) { return family_of(name, {sample_of({}, value)}); }

MetricSample sample_of(const std::string& part, const DurationHistogram& durations) {
  MetricSample sample;
  sample.labels = {{"part", part}};
  sample.count = durations.count;
  sample.sum = durations.sum;
  uint64_t cumulative = 0;
  for (size_t i = 0; i < DurationHistogram::kUpperBounds.size(); ++i) {
    cumulative += durations.counts[i];
    sample.buckets.push_back({DurationHistogram::kUpperBounds[i], cumulative});
  }
  sample.buckets.push_back({std::numeric_limits<double>::infinity(), durations.count});
  return sample;
}

std::vector<MetricSample> by_level_and_reason(const DecisionCounts& counts) {
  std::vector<MetricSample> samples;
  for (const auto& [key, count] : counts) {
    samples.push_back(sample_of({{"rung", key.first}, {"reason", key.second}}, static_cast<double>(count)));
  }
  return samples;
}

void add_recoveries(const JobRecord& job, std::vector<MetricFamily>& families) {
  std::vector<MetricSample> by_cause;
  for (const auto& [cause, count] : job.recoveries_by_cause()) {
    by_cause.push_back(sample_of({{"cause", cause}}, static_cast<double>(count)));
  }
  families.push_back(family_of(metric::kRecoveries, std::move(by_cause)));
  std::vector<MetricSample> by_part;
  for (const auto& [part, durations] : job.durations()) by_part.push_back(sample_of(part, durations));
  families.push_back(family_of(metric::kRecoveryDuration, std::move(by_part)));
  families.push_back(single(metric::kRedoneSteps, static_cast<double>(job.redone_steps())));
}

void add_job(const AgentFigures& figures, std::vector<MetricFamily>& families) {
  const RunStatus& status = figures.status;
  families.push_back(single(metric::kGeneration, static_cast<double>(status.generation & kCounterMask)));
  families.push_back(single(metric::kNodes, status.nnodes));
  families.push_back(single(metric::kWorldSize, status.world_size));
  std::vector<MetricSample> seconds;
  for (const GoodputPart& part : figures.goodput_counters) {
    seconds.push_back(sample_of({{"kind", part.kind}, {"cause", part.cause}}, part.seconds));
  }
  families.push_back(family_of(metric::kGaveUp, by_level_and_reason(figures.gave_up)));
  families.push_back(family_of(metric::kGoodputSeconds, std::move(seconds)));
  if (status.goodput) families.push_back(single(metric::kGoodputRatio, status.goodput->ratio));
  add_recoveries(*figures.job, families);
  if (status.slowest) {
    families.push_back(single(metric::kSlowestRank, status.slowest->rank));
    families.push_back(single(metric::kStragglerLag, status.slowest->lag_seconds));
  }
  std::vector<MetricSample> unchanged;
  for (const WorkerStatus& worker : status.workers) {
    if (worker.activity == Activity::kAwaiting) continue;  // it waits for a group: there is nothing to progress with
    unchanged.push_back(sample_of({{"rank", std::to_string(worker.rank)}}, worker.seconds_unchanged));
  }
  families.push_back(family_of(metric::kRankUnchanged, std::move(unchanged)));
}

}  // namespace

std::vector<MetricFamily> agent_metrics(const AgentFigures& figures) {
  std::vector<MetricFamily> families{
      family_of(metric::kRestarts, by_level_and_reason(figures.restarts)),
      single(metric::kWorkersAlive, figures.workers_alive),
      family_of(metric::kBuildInfo, {sample_of({{"version", build_version()}}, 1.0)}),
  };
  if (figures.job != nullptr) add_job(figures, families);
  return families;
}

}  // namespace lockstep
