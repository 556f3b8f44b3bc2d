#include "runner/models/jit/image_batch.h"

#include <torch/types.h>

#include <algorithm>

#include "runner/base/philox.h"
#include "runner/layers/initial_values.h"

namespace lockstep {

Result<ImageBatch> image_batch(const ImageCache& cache, std::span<const int64_t> images, const NoiseKey& key,
                               bool pinned) {
  const auto b = static_cast<int64_t>(images.size());
  const int64_t h = cache.side();
  const int64_t values = kChannels * h * h;
  const ImageBatch batch{
      .pixels_BHHC = at::empty({b, h, h, kChannels}, at::TensorOptions(at::kByte).pinned_memory(pinned)),
      .noise_BCHH = at::empty({b, kChannels, h, h}, at::TensorOptions(at::kFloat).pinned_memory(pinned))};
  for (int64_t i = 0; i < b; ++i) {
    const int64_t image = images[static_cast<size_t>(i)];
    TRY_ASSIGN(const std::span<const uint8_t> pixels, cache.pixels(image));
    std::copy(pixels.begin(), pixels.end(), batch.pixels_BHHC.mutable_data_ptr<uint8_t>() + i * values);
    fill_normals({key.seed, static_cast<uint32_t>(RandomPurpose::kImageNoise), static_cast<uint32_t>(key.epoch),
                  static_cast<uint32_t>(image)},
                 batch.noise_BCHH.mutable_data_ptr<float>() + i * values, values);
  }
  return batch;
}

at::Tensor patches_of(const at::Tensor& x_BCHH, int64_t patch_size) {
  const int64_t p = patch_size;
  const int64_t g = x_BCHH.size(-1) / p;
  return x_BCHH.reshape({-1, kChannels, g, p, g, p})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({-1, g * g, kChannels * p * p});
}

}  // namespace lockstep
