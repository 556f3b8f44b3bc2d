// The pod of one attempt of one node rank: podTemplate merged under the TrainJob's fields, and what the contract needs.
// Pure.
//
// Defaults, each only where the user says nothing: restricted pod security (seccomp, no privilege escalation; with
// launcher Lockstep also no capabilities and no root), fsGroup (unless Settings::sets_fs_group is off), a memory volume
// on /dev/shm (spec.trainer.sharedMemory), no service account token, no service links. There is no liveness probe: the
// agent itself restarts what hangs.
#pragma once

#include <set>
#include <string>

#include "operator/train/observed.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr int kDefaultFsGroup = 65532;  // "nonroot" of the usual images

struct PodParameters {
  int node_rank = 0;
  int attempt = 0;
  int pod_group = 0;                         // number of the gang's, where there is one
  std::set<std::string> avoided_nodes = {};  // Kubernetes nodes where it must not run
};

// What all pods have in common: the template is checked and merged once for as many as are made in a pass. kInvalid
// names the field of the TrainJob.
Result<Json> common_pod(const Observed& observed);
// kInvalid as above.
Result<Json> pod_of_rank(const Observed& observed, Json common, const PodParameters& parameters);
// Both.
Result<Json> desired_pod(const Observed& observed, const PodParameters& parameters);
// Pod 0 without what a queue's admission adds. The Workload asks the queue for pods like this one.
Result<Json> unadmitted_pod(const Observed& observed);

// spec.trainer.numProcPerNode; for auto the GPUs that the pod asks for, at least 1.
int num_proc_per_node(const api::TrainJobSpec& spec);

}  // namespace lockstep::train
