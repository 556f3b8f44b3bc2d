// The weight files of the guides whose models we train, which the guides' Python code can open: when they are due, and
// what all of them hold. Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/checkpoint/weights.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// best_model.EXTENSION when the evaluation is the best so far, and checkpoint_epoch_N.EXTENSION when it ends an epoch N
// that is a multiple of `epochs_between`.
std::vector<std::string> guide_files(const Workload::EvaluationReport& report, bool is_best, int64_t epochs_between,
                                     const std::string& extension);
// Whether guide_files gives such a name.
bool is_guide_file(std::string_view name);

// The content: `first`, the weights under their names, and the optimizer's state (adam_state_dict).
TorchTree guide_tree(PickleDict first, const std::vector<std::pair<std::string, NamedTensors>>& weights,
                     const NamedTensors& parameters, const TrainingOptions& training,
                     const Workload::OutputState& state);

}  // namespace lockstep
