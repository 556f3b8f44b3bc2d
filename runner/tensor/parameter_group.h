// ParameterGroup: parameters that the optimizer treats alike.
// Role: the vocabulary type between models, which say what is trained how, and optim.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct ParameterGroup {
  std::string name;                    // in checkpoints, where there are several: "decay"
  NamedTensors parameters;             // trainable leaves, in a fixed order, the same on all ranks; updated in place
  double lr_factor = 1.0;              // of the schedule's rate
  std::optional<double> weight_decay;  // instead of --weight_decay
};

}  // namespace lockstep
