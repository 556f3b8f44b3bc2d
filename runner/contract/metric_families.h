// MetricFamilies: the metrics of one process under the names of metric_names.h, as a message carries them.
// Threads: one at a time.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/contract/messages.h"
#include "runner/contract/metric_names.h"

namespace lockstep {

class MetricFamilies {
 public:
  using Labels = std::map<std::string, std::string>;

  // A gauge, or a counter that is counted elsewhere. What is never set is absent from the families.
  void set(const MetricName& name, double value, const Labels& labels = {}) { sample(name, labels).value = value; }
  // A counter. With 0 it is there from now on, so that Prometheus' rate() includes its first increment.
  void add(const MetricName& name, double amount, const Labels& labels = {}) { sample(name, labels).value += amount; }
  // The series of a histogram. `bounds`: of its buckets, ascending; one without a bound is added.
  MetricSample& histogram(const MetricName& name, std::span<const double> bounds, const Labels& labels = {});
  void observe(const MetricName& name, std::span<const double> bounds, double value, const Labels& labels = {});

  // By name.
  [[nodiscard]] std::vector<MetricFamily> all() const;
  // The same, each series with the label rank.
  [[nodiscard]] std::vector<MetricFamily> of_rank(int rank) const;

 private:
  MetricSample& sample(const MetricName& name, const Labels& labels);

  std::map<std::string_view, MetricFamily> families_;
};

}  // namespace lockstep
