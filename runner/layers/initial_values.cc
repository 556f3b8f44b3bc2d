#include "runner/layers/initial_values.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep {
namespace {

double unit_above_zero(uint32_t word) { return (static_cast<double>(word) + 1.0) / 4294967296.0; }

// The sum of fan-in and fan-out.
double fans(at::IntArrayRef sizes) {
  int64_t field = 1;
  for (size_t i = 2; i < sizes.size(); ++i) field *= sizes[i];
  return static_cast<double>((sizes[0] + sizes[1]) * field);
}

}  // namespace

// Box-Muller: the four words of a block give two pairs of normal values.
void normals_of(const Philox4& words, double deviation, float* out) {
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(unit_above_zero(words.x[2 * pair]))) * deviation;
    const double angle = 2.0 * std::numbers::pi * unit_above_zero(words.x[2 * pair + 1]);
    out[2 * pair] = static_cast<float>(radius * std::cos(angle));
    out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

void fill_normals(const PhiloxStream& stream, float* out, int64_t n) {
  for (int64_t first = 0; first < n; first += 4) {
    float four[4];
    normals_of(stream.block(static_cast<uint32_t>(first / 4)), 1.0, four);
    std::copy_n(four, std::min<int64_t>(4, n - first), out + first);
  }
}

at::Tensor trained(at::IntArrayRef sizes, at::Device device) {
  return at::zeros(sizes, at::TensorOptions(at::kFloat).device(device)).requires_grad_();
}

InitialValues::InitialValues(uint64_t seed, size_t parameter) : seed_(seed), parameter_(parameter) {}

template <typename Draw>
at::Tensor InitialValues::fill(at::IntArrayRef sizes, const Draw& draw) const {
  const PhiloxStream stream{seed_, static_cast<uint32_t>(RandomPurpose::kInit), static_cast<uint32_t>(parameter_), 0};
  at::Tensor values = at::empty(sizes, at::kFloat);
  float* const out = values.data_ptr<float>();
  const int64_t n = values.numel();
  for (int64_t first = 0; first < n; first += 4) {
    float four[4];
    draw(stream.block(static_cast<uint32_t>(first / 4)), four);
    for (int64_t i = first; i < std::min(first + 4, n); ++i) out[i] = four[i - first];
  }
  return values;
}

at::Tensor InitialValues::normal(at::IntArrayRef sizes, double deviation) const {
  return fill(sizes, [&](const Philox4& words, float* out) { normals_of(words, deviation, out); });
}

at::Tensor InitialValues::uniform(at::IntArrayRef sizes, double bound) const {
  return fill(sizes, [&](const Philox4& words, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<float>((2.0 * unit_above_zero(words.x[i]) - 1.0) * bound);
  });
}

at::Tensor InitialValues::xavier_normal(at::IntArrayRef sizes) const {
  return normal(sizes, std::sqrt(2.0 / fans(sizes)));
}

at::Tensor InitialValues::xavier_uniform(at::IntArrayRef sizes) const {
  return uniform(sizes, std::sqrt(6.0 / fans(sizes)));
}

}  // namespace lockstep
