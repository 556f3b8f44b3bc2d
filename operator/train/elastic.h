// elastic: from numNodes to pods and to the coordinator. Pure.
#pragma once

#include <optional>

#include "operator/api/trainjob.h"
#include "operator/train/observed.h"

namespace lockstep::train {

// Pod 0's agent is sent the number again when it has not taken it over after this long.
inline constexpr api::UnixSeconds kResendSeconds = 10;

// How many pods must be ready for the job to run: elastic.minNodes, or all of them.
int pods_needed(const api::TrainJobSpec& spec);

// The numNodes to send to the coordinator; nullopt: its newest report has it already, or it was just sent.
std::optional<int> num_nodes_to_send(const Observed& observed);

}  // namespace lockstep::train
