// The optimizer's state as torch.optim.Adam and AdamW have it, for the files of torch.save that workloads leave.
// Threads: pure.
#pragma once

#include "runner/checkpoint/weights.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// One group of all parameters in their order, with their names in place of numbers, as the guides' optimizers have it:
// its weight decay is --weight_decay, also for parameters that a workload does not decay. A parameter that is not
// trained (it has no moments) stands in the group alone, as one without a gradient does in torch. `tree` keeps the
// tensors.
PickleDict adam_state_dict(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, TorchTree& tree);

}  // namespace lockstep
