// Which pods that have done their part are deleted, and which stay for their logs. Pure.
#pragma once

#include <set>
#include <string>

#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/pod_view.h"

namespace lockstep::train {

// Running: those that have not ended; what has ended stays for its logs. All: all. None: none, not even those that run.
std::vector<const PodView*> pods_to_clean_up(const api::TrainJobSpec& spec, const std::vector<PodView>& pods);

// Of a job that goes on: names of the pods that failed and were replaced, and stay so that `kubectl logs` can say why.
// The newest of each node rank, as long as status.recentFailures names it: few, whatever the number of pods and
// failures.
std::set<std::string> pods_kept_for_logs(const api::TrainJobSpec& spec, const api::TrainJobStatus& status,
                                         const std::vector<PodView>& pods);

}  // namespace lockstep::train
