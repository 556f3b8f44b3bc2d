// What the models of all workloads are made of: trained leaves, their first values, dropouts.
//
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runner/kernels/dropout.h"

namespace lockstep {

// A trainable fp32 leaf of zeros.
at::Tensor trained(at::IntArrayRef sizes, at::Device device);

// Hands out one key per dropout, in the order of the forward pass; no key = evaluation.
class Dropouts {
 public:
  Dropouts() = default;
  Dropouts(double rate, const DropoutKey& key) : rate_(rate), key_(key) {}

  // x [B, …]: a mask for each sample.
  at::Tensor operator()(const at::Tensor& x);
  // x: one mask for the whole global batch, the same on every rank and in every micro-batch.
  at::Tensor of_table(const at::Tensor& x);

 private:
  double rate_ = 0.0;
  std::optional<DropoutKey> key_;
};

// Values of one parameter: element i depends on (seed, index of the parameter, i) alone. Drawn on the host.
class InitialValues {
 public:
  InitialValues(uint64_t seed, size_t parameter);

  [[nodiscard]] at::Tensor normal(at::IntArrayRef sizes, double deviation) const;
  [[nodiscard]] at::Tensor uniform(at::IntArrayRef sizes, double bound) const;  // in ±bound
  // Xavier's (Glorot and Bengio, 2010), with fans as torch counts them: [out, in, receptive field …].
  [[nodiscard]] at::Tensor xavier_normal(at::IntArrayRef sizes) const;
  [[nodiscard]] at::Tensor xavier_uniform(at::IntArrayRef sizes) const;

 private:
  template <typename Draw>
  [[nodiscard]] at::Tensor fill(at::IntArrayRef sizes, const Draw& draw) const;

  uint64_t seed_;
  size_t parameter_;
};

}  // namespace lockstep
