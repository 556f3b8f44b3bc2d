#include "runner/agent/agent_metrics.h"

#include "runner/base/build_info.h"
#include "runner/contract/metric_families.h"

namespace lockstep {
namespace {

constexpr uint64_t kCounterMask = 0xffff'ffff;  // the lower half of a generation

void add_by_level_and_reason(const MetricName& name, const DecisionCounts& counts, MetricFamilies& families) {
  for (const auto& [key, count] : counts) {
    families.set(name, static_cast<double>(count), {{"rung", key.first}, {"reason", key.second}});
  }
}

void add_recoveries(const JobRecord& job, MetricFamilies& families) {
  for (const auto& [cause, count] : job.recoveries_by_cause()) {
    families.set(metric::kRecoveries, static_cast<double>(count), {{"cause", cause}});
  }
  for (const auto& [part, durations] : job.durations()) {
    MetricSample& series =
        families.histogram(metric::kRecoveryDuration, DurationHistogram::kUpperBounds, {{"part", part}});
    series.count = durations.count;
    series.sum = durations.sum;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < durations.counts.size(); ++i) {
      series.buckets[i].cumulative_count = cumulative += durations.counts[i];
    }
    series.buckets.back().cumulative_count = durations.count;
  }
  families.set(metric::kRedoneSteps, static_cast<double>(job.redone_steps()));
}

void add_job(const AgentFigures& figures, MetricFamilies& families) {
  const RunStatus& status = figures.status;
  families.set(metric::kGeneration, static_cast<double>(status.generation & kCounterMask));
  families.set(metric::kNodes, status.nnodes);
  families.set(metric::kWorldSize, status.world_size);
  add_by_level_and_reason(metric::kGaveUp, figures.gave_up, families);
  for (const GoodputPart& part : figures.goodput_counters) {
    families.set(metric::kGoodputSeconds, part.seconds, {{"kind", part.kind}, {"cause", part.cause}});
  }
  if (status.goodput) families.set(metric::kGoodputRatio, status.goodput->ratio);
  add_recoveries(*figures.job, families);
  if (status.slowest) {
    families.set(metric::kSlowestRank, status.slowest->rank);
    families.set(metric::kStragglerLag, status.slowest->lag_seconds);
  }
  for (const WorkerStatus& worker : status.workers) {
    if (worker.activity == Activity::kAwaiting) continue;  // it waits for a group: there is nothing to progress with
    families.set(metric::kRankUnchanged, worker.seconds_unchanged, {{"rank", std::to_string(worker.rank)}});
  }
}

}  // namespace

std::vector<MetricFamily> agent_metrics(const AgentFigures& figures) {
  MetricFamilies families;
  add_by_level_and_reason(metric::kRestarts, figures.restarts, families);
  families.set(metric::kWorkersAlive, figures.workers_alive);
  families.set(metric::kBuildInfo, 1.0, {{"version", build_version()}});
  if (figures.job != nullptr) add_job(figures, families);
  return families.all();
}

}  // namespace lockstep
