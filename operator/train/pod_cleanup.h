// podCleanup: which pods of a finished job are deleted. Pure.
#pragma once

#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/pod_view.h"

namespace lockstep::train {

// Running: those that have not ended; what has ended stays for its logs. All: all. None: none, not even those that run.
std::vector<const PodView*> pods_to_clean_up(const api::TrainJobSpec& spec, const std::vector<PodView>& pods);

}  // namespace lockstep::train
