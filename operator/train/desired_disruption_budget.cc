#include "operator/train/desired_disruption_budget.h"

#include "operator/kube/resource.h"
#include "operator/train/object_names.h"

namespace lockstep::train {

Json desired_disruption_budget(const api::TrainJob& job) {
  const kube::Resource& kind = kube::kDisruptionBudgets.front();
  return {{"apiVersion", kind.api_version()},
          {"kind", kind.kind},
          {"metadata", owned_metadata(job.meta, job.meta.name)},
          {"spec",
           {{"maxUnavailable", 1},
            // Without it a pod that is not ready could not be evicted while another one is away.
            {"unhealthyPodEvictionPolicy", "AlwaysAllow"},
            {"selector", {{"matchLabels", {{std::string(kJobLabel), job.meta.name}}}}}}}};
}

}  // namespace lockstep::train
