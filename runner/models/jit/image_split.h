// ImageSplit: splits the images of a cache into training and validation, and makes their batches.
// Threads: const calls from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/batch_source.h"
#include "runner/models/workload.h"

namespace lockstep {

class ImageSplit {
 public:
  // Takes `valid_max` images for validation, but at most a tenth of all. num_images >= 1.
  ImageSplit(uint64_t seed, int64_t num_images, int64_t valid_max);

  [[nodiscard]] int64_t num_train() const { return num_train_; }
  [[nodiscard]] int64_t num_valid() const { return static_cast<int64_t>(order_.size()) - num_train_; }
  // Samples are numbered from 0: first those for training, then those for validation. Returns the sample's image, a
  // number in the cache.
  [[nodiscard]] int64_t image_of(int64_t sample) const { return order_[static_cast<size_t>(sample)]; }
  [[nodiscard]] std::vector<int64_t> images_of(const std::vector<int64_t>& samples) const;
  // The epoch that the random numbers of a batch follow from: the batch's own, or for validation on training images one
  // that training never reaches, so that they are not validated with the noise that they were trained with.
  [[nodiscard]] int64_t epoch_of_draws(const BatchShare& share) const {
    constexpr int64_t kOfNoTraining = 0xFFFFFFFF;
    return share.split == Split::kValidation && num_valid() == 0 ? kOfNoTraining : share.epoch;
  }

  // As Workload::batches. Training leaves out the samples of an incomplete last batch, unless there is no other batch.
  // Without validation images, validation uses some of the training images.
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const;

 private:
  std::vector<int64_t> order_;
  int64_t num_train_;
};

}  // namespace lockstep
