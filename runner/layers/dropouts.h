// The dropouts of one forward pass, each with a mask of its own.
//
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "runner/kernels/dropout.h"

namespace lockstep {

// Gives each dropout of a forward pass its own key, in the order of the calls. Without a key (evaluation) nothing is
// dropped.
class Dropouts {
 public:
  Dropouts() = default;
  Dropouts(double rate, const DropoutKey& key) : rate_(rate), key_(key) {}
  // For packed input: `rows` names the sample of each row, and the row's number within that sample.
  Dropouts(double rate, const DropoutKey& key, DropoutRows rows) : rate_(rate), key_(key), rows_(std::move(rows)) {}

  // x [B, …]: a mask for each sample. With DropoutRows: x [R, D], a mask for each row.
  at::Tensor operator()(const at::Tensor& x);
  // Dropout of relu(x), in one pass over the memory. Not with DropoutRows.
  at::Tensor of_relu(const at::Tensor& x);
  // x: one mask for the whole global batch, the same on every rank and in every micro-batch.
  at::Tensor of_table(const at::Tensor& x);

 private:
  double rate_ = 0.0;
  std::optional<DropoutKey> key_;
  std::optional<DropoutRows> rows_;
};

}  // namespace lockstep
