// ParameterGroup: parameters that the optimizer treats alike, as a param group of torch.optim.
// Role: the type in which a model tells the optimizer what to train and how.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct ParameterGroup {
  std::string name;                    // "decay"; part of names in checkpoints when there are several groups
  NamedTensors parameters;             // trainable leaves, in a fixed order, the same on all ranks; updated in place
  double lr_factor = 1.0;              // times the learning rate of the schedule
  std::optional<double> weight_decay;  // instead of --weight_decay
};

}  // namespace lockstep
