#include "runner/kernels/moving_average.h"

#include <torch/types.h>

#include "runner/base/check.h"

namespace lockstep {

void move_averages(const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values,
                   const at::Tensor& weight) {
  LOCKSTEP_CHECK(averages.size() == values.size(), "an average for each value");
  const torch::NoGradGuard no_grad;
  const at::Tensor scalar = weight.reshape({});
  std::vector<at::Tensor> dense_averages;
  std::vector<at::Tensor> dense_values;
  for (size_t i = 0; i < averages.size(); ++i) {
#ifdef LOCKSTEP_CUDA
    // Dense and with the same strides: average and value correspond by address.
    if (weight.is_cuda() && averages[i].is_non_overlapping_and_dense() &&
        averages[i].strides() == values[i].strides()) {
      dense_averages.push_back(averages[i]);
      dense_values.push_back(values[i]);
      continue;
    }
#endif
    averages[i].lerp_(values[i], scalar);
  }
#ifdef LOCKSTEP_CUDA
  if (!dense_averages.empty()) moving_average_detail::move_averages_cuda(dense_averages, dense_values, weight);
#endif
}

}  // namespace lockstep
