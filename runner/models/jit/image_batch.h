// What both JiT workloads have: the images' pixels, noise of the same size, and how pictures are cut into patches.
//
// Threads: pure. Shapes: B images, H their side in pixels, C = 3 colours, patches of P × P pixels, S = (H/P)² patches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "runner/base/result.h"
#include "runner/models/jit/data/image_cache.h"
#include "runner/models/workload.h"

namespace lockstep {

inline constexpr int64_t kChannels = 3;  // red, green, blue

struct ImageBatch {
  at::Tensor pixels_BHHC;  // bytes
  at::Tensor noise_BCHH;   // fp32, standard normals; depends only on (seed, epoch, image)
};

// What the random numbers of an image follow from, beside its number.
struct NoiseKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

// `images`: numbers in the cache. `pinned`: in pinned memory, for the copy to a device. Errors: those of the cache.
Result<ImageBatch> image_batch(const ImageCache& cache, std::span<const int64_t> images, const NoiseKey& key,
                               bool pinned);

// The patches of P × P pixels, row by row: [B, S, C · P · P].
at::Tensor patches_of(const at::Tensor& x_BCHH, int64_t patch_size);

}  // namespace lockstep
