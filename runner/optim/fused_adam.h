// Adam (Kingma and Ba 2015) as torch.optim.Adam and AdamW, over the parameters of a group in one fused operator (CPU
// and CUDA).
//
// Role: the optimizer of the training step. When found_inf is not 0, the device skips the update and does not advance
// the step counter; the host does not wait to know.
// Threads: the training thread. Ownership: owns its state; shares the parameters, which it updates in place.
// Errors: what torch throws (a device fault, out of memory) passes through to the train step, the edge that catches it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runner/tensor/named_tensor.h"
#include "runner/tensor/parameter_group.h"

namespace lockstep {

struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.98;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled_weight_decay = false;  // false: L2 in the gradient (Adam); true: AdamW
};

class Adam {
 public:
  // Parameters: leaves of one device and of floating-point dtype, at least one in each group. State has their shapes
  // and dtype.
  Adam(const std::vector<ParameterGroup>& groups, const AdamOptions& options);

  // One update from the gradients of the groups that are trained, which must all be defined, at the rate `lr` times
  // each group's factor.
  // found_inf: fp32, one element, 0 or 1, on the parameters' device; see grad_clip.h.
  void step(double lr, const at::Tensor& found_inf);

  // From now on the groups of these names are not updated and keep their moments and step count; all others are
  // trained.
  void freeze(const std::vector<std::string>& groups);

  // "exp_avg.<parameter>", "exp_avg_sq.<parameter>", and for each group "step" (fp32 scalar: the number of updates that
  // were not skipped), named "step.<group>" when there are several. The tensors share memory with the optimizer:
  // copying values into them loads a state.
  [[nodiscard]] NamedTensors state() const;

 private:
  struct Group {
    ParameterGroup group;
    std::vector<at::Tensor> exp_avgs;
    std::vector<at::Tensor> exp_avg_sqs;
    at::Tensor step;  // one for all its parameters: they are always updated together
    bool is_frozen = false;
  };

  AdamOptions options_;
  std::vector<Group> groups_;
};

}  // namespace lockstep
