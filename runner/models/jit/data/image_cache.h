// ImageCache: all images of a data set at one size in one file that is mapped into memory and never copied.
//
// Role: training and evaluation read images from it; prepare_images.h makes it.
// Threads: const methods from any thread. Ownership: views borrow from the cache and live no longer than it.
// The file (little-endian; image_cache.cc): a header, the pixels of all images, their index, the classes' names, the
// list of files that could not be read. The file is not trusted: header, index and the index's checksum are checked
// when it is opened, an image's checksum when it is read, so a truncated or forged file is refused. Truncating the file
// while it is mapped ends the process (SIGBUS), as with every mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/cache_file.h"
#include "runner/models/jit/data/image_source.h"

namespace lockstep {

// Raised with every change of the file format or of what the readers put into it; older caches are then made anew.
inline constexpr uint32_t kImageCacheVersion = 1;
inline constexpr int64_t kImageSideMax = 4096;

// Of one image, in the file's index.
struct ImageCacheEntry {
  uint32_t crc32 = 0;  // of its pixels
  uint32_t label = 0;
};

class ImageCache {
 public:
  // Errors: those of the disk; kCorrupt (no cache, cut off, damaged); kConflict for a cache of another version. Each
  // names the file.
  static Result<ImageCache> open(FileSystem& fs, const std::string& path);
  // The same from memory; `what` names it in messages.
  static Result<ImageCache> from_bytes(std::shared_ptr<const std::string> bytes, const std::string& what);

  [[nodiscard]] int64_t size() const { return num_images_; }
  // In pixels: all images are side × side.
  [[nodiscard]] int64_t side() const { return side_; }
  // The pixels of image i in [0, size()): [side, side, 3], RGB, rows from top to bottom. kCorrupt when the image's
  // checksum is wrong.
  [[nodiscard]] Result<std::span<const uint8_t>> pixels(int64_t i) const;
  // In [0, max(1, classes().size())).
  [[nodiscard]] int64_t label(int64_t i) const;
  // By label; empty: there are no classes, all labels are 0.
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  // Files that could not be read when the cache was made, in the order of their names.
  [[nodiscard]] const std::vector<SkippedFile>& skipped() const { return skipped_; }
  // SHA-256 of the index, which holds the checksums and labels of all images, and of the classes' names: the same for
  // the same data, independent of paths.
  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  friend Status write_image_cache(const std::vector<const ImageCache*>& parts, const ByteSink& sink);

  Status check();
  [[nodiscard]] Error corrupt(const std::string& message) const;
  [[nodiscard]] uint64_t image_bytes() const { return static_cast<uint64_t>(side_ * side_ * 3); }

  std::string what_;
  CacheBytes file_;
  int64_t num_images_ = 0;
  int64_t side_ = 0;
  uint64_t index_offset_ = 0;
  std::vector<std::string> classes_;
  std::vector<SkippedFile> skipped_;
  std::string digest_;
};

// Makes the bytes of a cache, one image after the other.
class ImageCacheWriter {
 public:
  // Reserves memory for num_images. `classes` outlive this.
  ImageCacheWriter(int64_t num_images, int64_t side, const std::vector<std::string>& classes);

  void add(const LabelledImage& image);  // of side × side pixels, with one of the labels
  [[nodiscard]] std::string finish(const std::vector<SkippedFile>& skipped) &&;

 private:
  int64_t side_;
  const std::vector<std::string>& classes_;
  std::string bytes_;  // room for the header, and the pixels
  std::vector<ImageCacheEntry> index_;
};

// One cache of all images and skipped files of `parts`, in their order; at least one part, all of one side and the same
// classes.
Status write_image_cache(const std::vector<const ImageCache*>& parts, const ByteSink& sink);

}  // namespace lockstep
