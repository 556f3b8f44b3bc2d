// elastic: from numNodes to pods and to the coordinator. Pure.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/observed.h"

namespace lockstep::train {

// Node 0's agent hears a number again when it has not taken it after this long.
inline constexpr api::UnixSeconds kTellAgainSeconds = 10;

// With so few nodes ready the job is up: elastic.minNodes, or all of them.
int nodes_needed(const api::TrainJobSpec& spec);

// Nodes that have (had) a pod and are beyond numNodes, highest first: in this order they get SIGTERM and leave.
std::vector<int> nodes_to_remove(const api::TrainJobSpec& spec, const std::set<int>& created);

// The wanted number for the coordinator, when its newest report has another one and it has not just been told.
std::optional<int> nodes_to_tell(const Observed& observed);

}  // namespace lockstep::train
