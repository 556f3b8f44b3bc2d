// Dropout whose mask does not depend on the machines.
//
// Role: the one dropout of all models. Element `e` of sample `b` is kept or dropped by a word of Philox4x32-10 that
// depends only on (seed, step, first_slot + b, layer, e): not on the rank, the world size, the micro-batch or the
// thread. CPU and CUDA give the same mask.
// Threads: as ATen operators; the CPU twin splits the samples over ATen's threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

struct DropoutKey {
  uint64_t seed = 0;
  int64_t step = 0;        // optimizer step
  int64_t first_slot = 0;  // slot of the global batch of x[0]; the other samples follow on
  uint32_t layer = 0;      // index of this dropout in the model; RandomPlace::kDropout + layer is the place
};

// x [B, ...]: dim 0 is the sample; fp32, fp64, bf16 or fp16; CPU or CUDA. Returns the kept elements times 1/(1-p) and
// zero for the others, in x's shape and dtype, contiguous. p in [0, 1); p == 0 returns x itself. Differentiable once.
// (Not named `dropout`: argument-dependent lookup would find at::dropout as well.)
at::Tensor philox_dropout(const at::Tensor& x, double p, const DropoutKey& key);

// philox_dropout(relu(x), …), in one pass forward and one backward.
at::Tensor philox_dropout_of_relu(const at::Tensor& x, double p, const DropoutKey& key);

// Rows that are parts of samples, in any order. int64 [R] each, contiguous, on x's device; values below 2³².
struct DropoutRows {
  at::Tensor samples_R;  // in place of the slot of the global batch
  at::Tensor parts_R;    // which part of its sample a row is
};
// x [R, D]: the same of rows. Element d of a row is element parts_R[r] · D' + d of sample samples_R[r], where D' is D
// filled up to a multiple of four: the mask depends neither on the rows beside it nor on their number.
at::Tensor philox_dropout(const at::Tensor& x_RD, double p, const DropoutKey& key, const DropoutRows& rows);

namespace dropout_detail {

// What one call draws: the twins' common argument.
struct MaskPlan {
  uint64_t seed;
  uint32_t place;
  uint32_t step;
  uint32_t first_slot;
  uint32_t drop_below;  // dropped where the word is smaller
  float scale;
  bool of_relu;               // what is at most 0 is dropped, too
  const int64_t* samples = nullptr;  // of rows, on the device; else the samples follow on from first_slot
  const int64_t* parts = nullptr;
};

// out = mask(x) * scale and mask = 1 where kept; all contiguous, of equal shape; mask is uint8.
void draw_and_apply_cpu(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& out, const MaskPlan& plan);
void draw_and_apply_cuda(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& out, const MaskPlan& plan);

}  // namespace dropout_detail
}  // namespace lockstep
