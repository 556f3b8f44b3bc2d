#include "runner/contract/metric_families.h"

#include <algorithm>
#include <limits>

namespace lockstep {

MetricSample& MetricFamilies::sample(const MetricName& name, const Labels& labels) {
  MetricFamily& family = families_[name.name];
  if (family.metrics.empty()) {
    family = {.name = std::string(name.name), .help = std::string(name.help), .type = name.type, .metrics = {}};
  }
  const auto found = std::find_if(family.metrics.begin(), family.metrics.end(),
                                  [&](const MetricSample& sample) { return sample.labels == labels; });
  if (found != family.metrics.end()) return *found;
  family.metrics.push_back({.labels = labels});
  return family.metrics.back();
}

MetricSample& MetricFamilies::histogram(const MetricName& name, std::span<const double> bounds, const Labels& labels) {
  MetricSample& series = sample(name, labels);
  if (!series.buckets.empty()) return series;
  for (const double bound : bounds) series.buckets.push_back({.upper_bound = bound, .cumulative_count = 0});
  series.buckets.push_back({.upper_bound = std::numeric_limits<double>::infinity(), .cumulative_count = 0});
  return series;
}

void MetricFamilies::observe(const MetricName& name, std::span<const double> bounds, double value,
                             const Labels& labels) {
  MetricSample& series = histogram(name, bounds, labels);
  ++series.count;
  series.sum += value;
  for (HistogramBucket& bucket : series.buckets) bucket.cumulative_count += value <= bucket.upper_bound ? 1 : 0;
}

std::vector<MetricFamily> MetricFamilies::all() const {
  std::vector<MetricFamily> families;
  for (const auto& [name, family] : families_) families.push_back(family);
  return families;
}

std::vector<MetricFamily> MetricFamilies::of_rank(int rank) const {
  std::vector<MetricFamily> families = all();
  for (MetricFamily& family : families) {
    for (MetricSample& sample : family.metrics) sample.labels["rank"] = std::to_string(rank);
  }
  return families;
}

}  // namespace lockstep
