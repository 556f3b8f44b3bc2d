// The optimizer's state as torch.optim.Adam and AdamW have it, for the files of torch.save that workloads leave.
// Threads: pure.
#pragma once

#include "runner/base/result.h"
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

// The other way: what Adam::state holds, from such a dict, ours or one that torch's optimizer made, whose parameters
// are numbers in the order of the model's. `model`: the state dict beside it, in its order; `buffers`: what of it is no
// parameter. `state`: Adam::state; all its groups get the one count of steps. The tensors are copies.
// Errors (kInvalid): a moment of a parameter that is missing, no count of steps, or as many numbers as no model has.
Result<NamedTensors> adam_tensors(const PickleDict& optimizer, const NamedTensors& model, const NamedTensors& buffers,
                                  const NamedTensors& state);

}  // namespace lockstep
