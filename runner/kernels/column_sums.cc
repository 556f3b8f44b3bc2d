#include "runner/kernels/column_sums.h"

#include "runner/kernels/quads.h"

namespace lockstep {

at::Tensor column_sums(const at::Tensor& x_RC) {
#ifdef LOCKSTEP_CUDA
  if (x_RC.is_cuda() && has_quad_type(x_RC) && x_RC.size(1) % kQuad == 0 && x_RC.size(0) > 0) {
    at::Tensor sums_RC = column_sums_detail::sums_by_run_cuda(in_a_row(x_RC));
    while (sums_RC.size(0) > 1) sums_RC = column_sums_detail::sums_by_run_cuda(sums_RC);
    return sums_RC[0];
  }
#endif
  return at::sum(x_RC, 0, /*keepdim=*/false, at::kFloat);
}

}  // namespace lockstep
