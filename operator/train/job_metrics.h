// JobMetrics: what the operator counts of TrainJobs (contract/metric_names.h), beside controller-runtime's names.
// Threads: safe from all threads.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "operator/api/object_meta.h"
#include "operator/api/trainjob.h"
#include "operator/train/plan.h"

namespace prometheus {
class Registry;
}

namespace lockstep::train {

class JobMetrics {
 public:
  explicit JobMetrics(prometheus::Registry& registry);  // outlives this
  ~JobMetrics();

  void count(const Measurement& measurement);
  void set_phase(const api::ObjectKey& job, api::JobPhase phase);
  void forget(const api::ObjectKey& job);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
