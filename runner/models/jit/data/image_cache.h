// ImageCache: all images of a data set at one size as records of a cache file, from which they are read without a copy.
//
// Role: training and evaluation read images from it; prepare_images.h makes it. A record is an image's pixels, its tag
// the label; the facts are {"side": …, "classes": […]}.
// Threads: const methods from any thread. Ownership: views borrow from the cache and live no longer than it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/record_cache.h"

namespace lockstep {

inline constexpr CacheFormat kImageCache = {.magic = "LSIMAGE\n", .version = 2, .name = "image cache"};
inline constexpr int64_t kImageSideMax = 4096;

// The facts of a cache of such images.
Json image_facts(int64_t side, const std::vector<std::string>& classes);

class ImageCache {
 public:
  // kCorrupt: its facts or labels are damaged.
  static Result<ImageCache> from_records(RecordCache records);

  [[nodiscard]] int64_t size() const { return records_.size(); }
  // In pixels: all images are side × side.
  [[nodiscard]] int64_t side() const { return side_; }
  // The pixels of image i in [0, size()): [side, side, 3], RGB, rows from top to bottom. kCorrupt when it is damaged.
  [[nodiscard]] Result<std::span<const uint8_t>> pixels(int64_t i) const;
  // In [0, max(1, classes().size())).
  [[nodiscard]] int64_t label(int64_t i) const { return records_.tag(i); }
  // By label; empty: there are no classes, all labels are 0.
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  [[nodiscard]] const std::vector<SkippedFile>& skipped() const { return records_.skipped(); }
  [[nodiscard]] const std::string& digest() const { return records_.digest(); }

 private:
  RecordCache records_;
  int64_t side_ = 0;
  std::vector<std::string> classes_;
};

}  // namespace lockstep
