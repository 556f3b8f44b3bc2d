// The optimizer's state as torch.optim.Adam and AdamW have it, for the files of torch.save that the protein models
// leave. Threads: pure.
#pragma once

#include "runner/checkpoint/weights.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// With the parameters' names in place of numbers. `tree` keeps the tensors.
PickleDict adam_state_dict(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, TorchTree& tree);

}  // namespace lockstep
