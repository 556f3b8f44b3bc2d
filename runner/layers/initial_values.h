// Makes the trainable parameters of a model and draws their values at the start of a run.
//
// Threads: one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "runner/base/philox.h"

namespace lockstep {

// Writes four normal values of mean 0 to out[0 … 3], from one block of random words.
void normals_of(const Philox4& words, double deviation, float* out);
// The first n values of the stream, normal with mean 0 and deviation 1.
void fill_normals(const PhiloxStream& stream, float* out, int64_t n);

// A trainable fp32 leaf of zeros.
at::Tensor trained(at::IntArrayRef sizes, at::Device device);

// Values of one parameter: element i depends only on (seed, index of the parameter, i). Drawn on the host.
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
