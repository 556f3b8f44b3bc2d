// JobMetrics: what the operator counts of TrainJobs (contract/metric_names.h), beside controller-runtime's names.
// Threads: safe from all threads.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/api/trainjob.h"
#include "operator/train/plan.h"

namespace lockstep::train {

class JobMetrics : public prometheus::Collectable {
 public:
  JobMetrics();
  ~JobMetrics() override;

  void count(const api::ObjectKey& job, const Measurement& measurement);
  // Exports the job's phase, and the reason why it failed. Does nothing before the status has a phase.
  void show(const api::ObjectKey& job, const api::TrainJobStatus& status);
  // Removes the series that have its name, and takes it out of the count of jobs of its phase.
  void forget(const api::ObjectKey& job);
  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
