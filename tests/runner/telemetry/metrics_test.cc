#include "runner/telemetry/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

const MetricFamily* family(const std::vector<MetricFamily>& families, const MetricName& name) {
  const auto found =
      std::find_if(families.begin(), families.end(), [&](const MetricFamily& f) { return f.name == name.name; });
  return found == families.end() ? nullptr : &*found;
}

double value(const RunMetrics& metrics, const MetricName& name) {
  const auto families = metrics.families();
  const MetricFamily* found = family(families, name);
  if (found == nullptr || found->metrics.size() != 1) return std::numeric_limits<double>::quiet_NaN();
  return found->metrics[0].value;
}

TEST(RunMetrics, counts_steps_and_samples) {
  RunMetrics metrics(0, 1.0);
  metrics.set_target_steps(40);
  metrics.on_step({.step = 9, .samples = 128, .epoch = 0.5, .seconds = 0.1, .unix_time = 3.0});
  metrics.on_step({.step = 10, .samples = 100, .epoch = 0.6, .seconds = 0.1, .unix_time = 4.0});
  EXPECT_EQ(value(metrics, metric::kSteps), 2.0);
  EXPECT_EQ(value(metrics, metric::kSamples), 228.0);
  EXPECT_EQ(value(metrics, metric::kStep), 10.0);
  EXPECT_EQ(value(metrics, metric::kProgress), 0.25);
  EXPECT_EQ(value(metrics, metric::kLastStepTimestamp), 4.0);
}

TEST(RunMetrics, says_nothing_of_what_it_does_not_know) {
  RunMetrics metrics(0, 1.0);
  metrics.on_log({.loss = 1.0, .grad_norm = 1.0, .lr = 1.0, .samples_per_second = 1.0});
  metrics.on_memory({.resident_bytes = 5.0, .device = std::nullopt});
  const auto families = metrics.families();
  EXPECT_NE(family(families, metric::kLoss), nullptr);
  EXPECT_EQ(family(families, metric::kMfu), nullptr);
  EXPECT_EQ(family(families, metric::kLossScale), nullptr);
  EXPECT_EQ(family(families, metric::kDeviceMemory), nullptr);
  EXPECT_EQ(family(families, metric::kCheckpointLastStep), nullptr);
}

TEST(RunMetrics, every_series_carries_its_rank) {
  RunMetrics metrics(3, 1.0);
  metrics.on_skipped_step("not_finite");
  for (const MetricFamily& found : metrics.families())
    for (const MetricSample& sample : found.metrics) EXPECT_EQ(sample.labels.at("rank"), "3") << found.name;
}

TEST(RunMetrics, phase_seconds_follow_the_clock) {
  RunMetrics metrics(0, 1.0);
  PhaseSeconds seconds;
  seconds[Phase::kForward] = 1.0;
  metrics.on_phase_seconds(seconds);
  seconds[Phase::kForward] = 2.5;
  seconds[Phase::kBackward] = 4.0;
  metrics.on_phase_seconds(seconds);
  const auto families = metrics.families();
  double total = 0.0;
  for (const MetricSample& sample : family(families, metric::kPhaseSeconds)->metrics) {
    total += sample.value;
    if (sample.labels.at("phase") == "forward") {
      EXPECT_DOUBLE_EQ(sample.value, 2.5);
    }
  }
  EXPECT_DOUBLE_EQ(total, seconds.total());
}

TEST(RunMetrics, histograms_have_cumulative_buckets_up_to_infinity) {
  RunMetrics metrics(0, 1.0);
  for (const double seconds : {0.002, 0.02, 1000.0})
    metrics.on_step({.step = 1, .samples = 1, .epoch = 0.0, .seconds = seconds, .unix_time = 0.0});
  const auto families = metrics.families();
  const MetricSample& sample = family(families, metric::kStepDuration)->metrics.at(0);
  EXPECT_EQ(sample.count, 3U);
  EXPECT_DOUBLE_EQ(sample.sum, 1000.022);
  EXPECT_TRUE(std::isinf(sample.buckets.back().upper_bound));
  EXPECT_EQ(sample.buckets.back().cumulative_count, 3U);
  EXPECT_EQ(sample.buckets[sample.buckets.size() - 2].cumulative_count, 2U);
}

TEST(RunMetrics, families_survive_the_agent_link) {
  RunMetrics metrics(1, 1.0);
  metrics.on_log({.loss = std::nan(""), .grad_norm = 1.0, .lr = 1.0, .samples_per_second = 1.0});
  metrics.on_checkpoint({.step = 5, .stage_seconds = 0.1, .write_seconds = 0.2, .bytes = 7.0, .unix_time = 8.0});
  const auto decoded = decode_worker_message(encode(WorkerMessage(Metrics{metrics.families()})));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  const auto& families = std::get<Metrics>(*decoded).families;
  EXPECT_TRUE(std::isnan(family(families, metric::kLoss)->metrics.at(0).value));
  EXPECT_EQ(family(families, metric::kCheckpointDuration)->metrics.size(), 2U);
  EXPECT_EQ(family(families, metric::kCheckpointDuration)->type, MetricType::kHistogram);
}

TEST(RunMetrics, resident_memory_is_what_this_process_has) {
  const double bytes = resident_memory_bytes();
  EXPECT_GT(bytes, 1e5);
  EXPECT_LT(bytes, 1e11);
}

}  // namespace
}  // namespace lockstep
