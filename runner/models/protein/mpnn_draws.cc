#include "runner/models/protein/mpnn_draws.h"

#include <torch/types.h>

#include <algorithm>

#include "runner/base/philox.h"
#include "runner/layers/initial_values.h"

namespace lockstep {
namespace {

constexpr int64_t kCoordinatesOfResidue = 12;
constexpr double kWords = 4294967296.0;

PhiloxStream stream_of(const SampleKey& key, RandomPurpose purpose, int64_t sample) {
  return {key.seed, static_cast<uint32_t>(purpose), static_cast<uint32_t>(key.step),
          static_cast<uint32_t>(key.first_slot + sample)};
}

at::Tensor normals(const SampleKey& key, RandomPurpose purpose, int64_t samples, int64_t values) {
  at::Tensor out = at::empty({samples, values}, at::kFloat);
  for (int64_t b = 0; b < samples; ++b) {
    fill_normals(stream_of(key, purpose, b), out.mutable_data_ptr<float>() + b * values, values);
  }
  return out;
}

}  // namespace

at::Tensor backbone_normals(const SampleKey& key, int64_t samples, int64_t length) {
  return normals(key, RandomPurpose::kBackboneNoise, samples, length * kCoordinatesOfResidue)
      .view({samples, length, 4, 3});
}

at::Tensor order_normals(const SampleKey& key, int64_t samples, int64_t length) {
  return normals(key, RandomPurpose::kDecodingOrder, samples, length);
}

at::Tensor design_uniforms(const SampleKey& key, int64_t samples, int64_t length) {
  at::Tensor out = at::empty({samples, length}, at::kDouble);
  auto* const values = out.mutable_data_ptr<double>();
  for (int64_t b = 0; b < samples; ++b) {
    const PhiloxStream stream = stream_of(key, RandomPurpose::kDesign, b);
    for (int64_t i = 0; i < length; ++i) {
      values[b * length + i] = static_cast<double>(stream.word(static_cast<uint64_t>(i))) / kWords;
    }
  }
  return out;
}

at::Tensor decoding_order(const at::Tensor& normals_BL, const at::Tensor& designed_BL) {
  return at::argsort((designed_BL + 1e-4) * normals_BL.abs(), /*stable=*/true, /*dim=*/1, /*descending=*/false);
}

}  // namespace lockstep
