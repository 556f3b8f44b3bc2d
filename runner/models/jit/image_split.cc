#include "runner/models/jit/image_split.h"

#include <algorithm>

#include "runner/data/sampler.h"

namespace lockstep {
namespace {

// The number of training images to validate on when there are no validation images.
constexpr int64_t kTrainImagesValidated = 256;

}  // namespace

ImageSplit::ImageSplit(uint64_t seed, int64_t num_images, int64_t valid_max)
    : order_(split_order(seed, num_images)), num_train_(num_images - std::min(valid_max, num_images / 10)) {}

std::vector<int64_t> ImageSplit::images_of(const std::vector<int64_t>& samples) const {
  std::vector<int64_t> images;
  for (const int64_t sample : samples) images.push_back(image_of(sample));
  return images;
}

Result<std::unique_ptr<BatchSource>> ImageSplit::batches(const BatchOptions& options) const {
  if (options.split == Split::kValidation) {
    const bool is_kept = num_valid() > 0;
    return InOrder::create({.first = is_kept ? num_train_ : 0,
                            .num_samples = is_kept ? num_valid() : std::min(kTrainImagesValidated, num_train_),
                            .global_batch = options.global_batch});
  }
  const bool fills_a_batch = num_train_ >= options.global_batch;
  return Sampler::create({.seed = options.seed,
                          .num_samples = num_train_,
                          .global_batch = options.global_batch,
                          .last_batch = fills_a_batch ? LastBatch::kDrop : LastBatch::kShort});
}

}  // namespace lockstep
