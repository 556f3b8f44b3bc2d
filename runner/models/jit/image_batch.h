// What both JiT workloads take of the pictures of a batch: their pixels, and noise of the same size.
//
// Threads: pure. Shapes: B pictures, H their side, C = 3 colours.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "runner/base/result.h"
#include "runner/data/images/image_cache.h"
#include "runner/models/workload.h"

namespace lockstep {

struct ImageBatch {
  at::Tensor pixels_BHHC;  // bytes
  at::Tensor noise_BCHH;   // fp32, standard normals: a function of (seed, epoch, picture) alone
};

// images: numbers in the cache. pinned: in memory that a device copies from. Errors: those of the cache.
Result<ImageBatch> image_batch(const ImageCache& cache, std::span<const int64_t> images, const BatchShare& share,
                               bool pinned);

}  // namespace lockstep
