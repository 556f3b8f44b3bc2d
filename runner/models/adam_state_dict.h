// Converts the optimizer's state to and from the state dict of torch.optim.Adam and AdamW, for the torch.save files
// that workloads write.
// Threads: pure.
#pragma once

#include "runner/base/result.h"
#include "runner/checkpoint/weights.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// The state dict has one group with all parameters in order, under their names instead of numbers, as the guides'
// optimizers have it. Its weight decay is --weight_decay, also for parameters that a workload does not decay. A
// parameter that is not trained has no moments: it is listed in the group but has no entry under "state", like a
// parameter without a gradient in torch. `tree` keeps the tensors.
PickleDict adam_state_dict(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, TorchTree& tree);

// The reverse: the tensors of Adam::state, from such a dict. The dict may also come from torch's own optimizer, which
// numbers the parameters in the model's order. `model`: the model's state dict from the same file, in its order.
// `state`: Adam::state; all its groups get the dict's step count. The tensors are copies.
// Errors (kInvalid): a parameter's moment is missing, there is no step count, or the number of parameters is not the
// model's.
Result<NamedTensors> adam_tensors(const PickleDict& optimizer, const NamedTensors& model, const NamedTensors& state);

}  // namespace lockstep
