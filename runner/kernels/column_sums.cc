#include "runner/kernels/column_sums.h"

#include <torch/types.h>

namespace lockstep {

at::Tensor column_sums(const at::Tensor& x_RC) {
#ifdef LOCKSTEP_CUDA
  const bool has_type = x_RC.is_floating_point() && x_RC.scalar_type() != at::kDouble;
  if (x_RC.is_cuda() && has_type && x_RC.size(1) % 4 == 0 && x_RC.size(0) > 0) {
    const at::Tensor x =
        x_RC.is_contiguous() && x_RC.storage_offset() % 4 == 0 ? x_RC : x_RC.clone(at::MemoryFormat::Contiguous);
    return column_sums_detail::sums_by_run_cuda(x).sum(0);
  }
#endif
  return at::sum(x_RC, 0, /*keepdim=*/false, at::kFloat);
}

}  // namespace lockstep
