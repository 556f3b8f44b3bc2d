// The dropouts of one forward pass, each with a mask of its own.
//
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "runner/kernels/dropout.h"

namespace lockstep {

// Hands out one key per dropout, in the order of the forward pass; no key = evaluation.
class Dropouts {
 public:
  Dropouts() = default;
  Dropouts(double rate, const DropoutKey& key) : rate_(rate), key_(key) {}
  // Of rows, which are parts of samples.
  Dropouts(double rate, const DropoutKey& key, DropoutRows rows) : rate_(rate), key_(key), rows_(std::move(rows)) {}

  // x [B, …]: a mask for each sample. Of rows, x [R, D].
  at::Tensor operator()(const at::Tensor& x);
  // x: one mask for the whole global batch, the same on every rank and in every micro-batch.
  at::Tensor of_table(const at::Tensor& x);

 private:
  double rate_ = 0.0;
  std::optional<DropoutKey> key_;
  std::optional<DropoutRows> rows_;
};

}  // namespace lockstep
