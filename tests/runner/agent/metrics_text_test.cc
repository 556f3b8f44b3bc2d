#include "runner/agent/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

MetricFamily counter_of(const std::string& name, const std::string& rank, double value) {
  MetricSample sample;
  sample.labels = {{"rank", rank}};
  sample.value = value;
  return MetricFamily{name, "Help.", MetricType::kCounter, {sample}};
}

TEST(MetricsText, merges_families_of_one_name) {
  const std::vector<MetricFamily> zero{counter_of("a_total", "0", 1)};
  const std::vector<MetricFamily> one{counter_of("a_total", "1", 2), counter_of("b_total", "1", 3)};
  EXPECT_EQ(metrics_text({&zero, &one}),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total{rank=\"0\"} 1\na_total{rank=\"1\"} 2\n"
            "# HELP b_total Help.\n# TYPE b_total counter\nb_total{rank=\"1\"} 3\n");
}

TEST(MetricsText, writes_histograms) {
  MetricSample sample;
  sample.count = 3;
  sample.sum = 1.5;
  sample.buckets = {{0.5, 2}, {std::numeric_limits<double>::infinity(), 3}};
  const std::vector<MetricFamily> families{{"h_seconds", "Help.", MetricType::kHistogram, {sample}}};
  const std::string text = metrics_text({&families});
  EXPECT_THAT(text, HasSubstr("h_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{le=\"0.5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("h_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(MetricsText, leaves_out_what_prometheus_would_refuse) {
  const std::vector<MetricFamily> bad{counter_of("no spaces", "0", 1), counter_of("a_total", "0", 1)};
  MetricFamily gauge = counter_of("a_total", "1", 2);
  gauge.type = MetricType::kGauge;
  const std::vector<MetricFamily> clash{gauge};
  const std::string text = metrics_text({&bad, &clash});
  EXPECT_THAT(text, Not(HasSubstr("no spaces")));
  EXPECT_THAT(text, Not(HasSubstr("rank=\"1\"")));
  EXPECT_THAT(text, HasSubstr("a_total{rank=\"0\"} 1\n"));
}

}  // namespace
}  // namespace lockstep
