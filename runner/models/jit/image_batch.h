// The part of a batch that both JiT workloads have: the images' pixels, and noise of the same size.
//
// Threads: pure. Shapes: B images, H their side in pixels, C = 3 colours.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "runner/base/result.h"
#include "runner/data/images/image_cache.h"
#include "runner/models/workload.h"

namespace lockstep {

inline constexpr int64_t kChannels = 3;  // red, green, blue

struct ImageBatch {
  at::Tensor pixels_BHHC;  // bytes
  at::Tensor noise_BCHH;   // fp32, standard normals; depends only on (seed, epoch, image)
};

// `images`: numbers in the cache. `pinned`: in pinned memory, for the copy to a device. Errors: those of the cache.
Result<ImageBatch> image_batch(const ImageCache& cache, std::span<const int64_t> images, const BatchShare& share,
                               bool pinned);

}  // namespace lockstep
