// NodeCensus: of the Kubernetes nodes on which pods of TrainJobs run, how many kubelets are silent? Across all jobs,
// because one job alone does not see whether it is its node or the API server's connection to most of them.
//
// Threads: safe from all threads.
#pragma once

#include "operator/control/cache.h"
#include "operator/train/observed.h"
#include "runner/base/mutex.h"

namespace lockstep::train {

class NodeCensus {
 public:
  // Both outlive it.
  NodeCensus(const control::Cache<PodView>& pods, const control::Cache<NodeView>& nodes) : pods_(pods), nodes_(nodes) {}

  // Looks at every pod, at most once for each value of `now`.
  NodesInUse count(api::UnixSeconds now);

 private:
  const control::Cache<PodView>& pods_;
  const control::Cache<NodeView>& nodes_;
  Mutex mutex_;
  api::UnixSeconds counted_at_ GUARDED_BY(mutex_) = 0;
  NodesInUse counted_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::train
