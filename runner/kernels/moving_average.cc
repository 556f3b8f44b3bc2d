#include "runner/kernels/moving_average.h"

#include <torch/types.h>

#include "runner/base/check.h"

namespace lockstep {

void move_averages(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values,
                   const at::Tensor& weight) {
  LOCKSTEP_CHECK(averages.size() == values.size(), "an average for each value");
  const torch::NoGradGuard no_grad;
#ifdef LOCKSTEP_CUDA
  if (weight.is_cuda()) return moving_average_detail::move_averages_cuda(averages, values, weight);
#endif
  const at::Tensor scalar = weight.reshape({});
  for (size_t i = 0; i < averages.size(); ++i) averages[i].lerp_(values[i], scalar);
}

}  // namespace lockstep
