// Dropout whose mask does not depend on the number of ranks or on the device.
//
// Role: the one dropout of all models. Element `e` of sample `b` is kept or dropped by a word of Philox4x32-10 that
// depends only on (seed, step, first_slot + b, layer, e): not on the rank, the world size, the micro-batch or the
// thread. CPU and CUDA give the same mask.
// Threads: as ATen operators; the CPU implementation splits the samples over ATen's threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

struct DropoutKey {
  uint64_t seed = 0;
  int64_t step = 0;        // optimizer step
  int64_t first_slot = 0;  // slot of x[0] in the global batch; x[b] has slot first_slot + b
  uint32_t layer = 0;      // index of this dropout in the model; RandomPurpose::kDropout + layer is the purpose
};

// x [B, ...]: dim 0 is the sample; fp32, fp64, bf16 or fp16; CPU or CUDA. Returns the kept elements times 1/(1-p) and
// zero for the others, in x's shape and dtype, contiguous. p in [0, 1); p == 0 returns x itself. Differentiable once.
// (Not named `dropout`: argument-dependent lookup would find at::dropout as well.)
at::Tensor philox_dropout(const at::Tensor& x, double p, const DropoutKey& key);

// philox_dropout(relu(x), …), in one pass forward and one backward.
at::Tensor philox_dropout_of_relu(const at::Tensor& x, double p, const DropoutKey& key);

// For input whose rows are parts of samples, in any order (tokens of packed texts). int64 [R] each, contiguous, on x's
// device; values below 2³².
struct DropoutRows {
  at::Tensor samples_R;  // number of the sample to which a row belongs; used instead of the slot
  at::Tensor parts_R;    // number of the row within its sample
};
// Dropout of rows, x [R, D]. For the mask, element d of row r is element parts_R[r] · D' + d of sample samples_R[r],
// where D' is D rounded up to a multiple of four. So a row's mask does not depend on the other rows or their number.
at::Tensor philox_dropout(const at::Tensor& x_RD, double p, const DropoutKey& key, const DropoutRows& rows);

namespace dropout_detail {

// The parameters of one call's mask, common to the CPU and the CUDA implementation.
struct MaskPlan {
  uint64_t seed;
  uint32_t purpose;
  uint32_t step;
  uint32_t first_slot;
  uint32_t drop_below;  // an element is dropped when its random word is smaller
  float scale;
  bool of_relu;                      // elements that are at most 0 are dropped, too
  const int64_t* samples = nullptr;  // of DropoutRows, on the device; null: sample b has the slot first_slot + b
  const int64_t* parts = nullptr;
};

// out = mask(x) * scale and mask = 1 where kept; all contiguous, of equal shape; mask is uint8.
void draw_and_apply_cpu(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& out, const MaskPlan& plan);
void draw_and_apply_cuda(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& out, const MaskPlan& plan);
// out = x * scale where the mask is 1, and 0 elsewhere; all contiguous. In one pass, where at::native_dropout_backward
// takes three on a CPU.
void apply_mask_cpu(const at::Tensor& x, const at::Tensor& mask, double scale, const at::Tensor& out);

}  // namespace dropout_detail
}  // namespace lockstep
