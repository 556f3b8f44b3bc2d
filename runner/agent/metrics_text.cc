#include "runner/agent/metrics_text.h"

#include <prometheus/check_names.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace lockstep {
namespace {

prometheus::MetricType to_prometheus(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

bool names_are_valid(const MetricFamily& family) {
  if (!prometheus::CheckMetricName(family.name)) return false;
  return std::all_of(family.metrics.begin(), family.metrics.end(), [](const MetricSample& sample) {
    return std::all_of(sample.labels.begin(), sample.labels.end(),
                       [](const auto& label) { return prometheus::CheckLabelName(label.first); });
  });
}

prometheus::ClientMetric to_prometheus(const MetricSample& sample, MetricType type) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  metric.counter.value = sample.value;
  metric.gauge.value = sample.value;
  if (type == MetricType::kHistogram) {
    metric.histogram.sample_count = sample.count;
    metric.histogram.sample_sum = sample.sum;
    for (const HistogramBucket& bucket : sample.buckets) {
      prometheus::ClientMetric::Bucket out;
      out.upper_bound = bucket.upper_bound;
      out.cumulative_count = bucket.cumulative_count;
      metric.histogram.bucket.push_back(out);
    }
  }
  return metric;
}

}  // namespace

std::string metrics_text(const std::vector<const std::vector<MetricFamily>*>& sources) {
  std::map<std::string, prometheus::MetricFamily> merged;
  for (const std::vector<MetricFamily>* families : sources) {
    for (const MetricFamily& family : *families) {
      if (!names_are_valid(family)) continue;
      prometheus::MetricFamily& target = merged[family.name];
      if (target.name.empty()) {
        target.name = family.name;
        target.help = family.help;
        target.type = to_prometheus(family.type);
      }
      if (target.type != to_prometheus(family.type)) continue;
      for (const MetricSample& sample : family.metrics) target.metric.push_back(to_prometheus(sample, family.type));
    }
  }
  std::vector<prometheus::MetricFamily> families;
  for (auto& [name, family] : merged) families.push_back(std::move(family));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace lockstep
