// Any bytes are either refused or give images whose every pixel can be read. The first byte says whether they are taken
// as a cache or as the file of an image, whether its checksums are mended, and at which side; an image that is read is
// cropped, cached and read again.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/check.h"
#include "runner/data/cache_file.h"
#include "runner/models/jit/data/centre_crop.h"
#include "runner/models/jit/data/image_cache.h"
#include "runner/models/jit/data/image_file.h"

namespace {

// Larger ones are read too, but take the fuzzer's time.
constexpr uint64_t kFuzzPixels = 1 << 20;

lockstep::Result<lockstep::ImageCache> cache_from(std::string bytes) {
  TRY_ASSIGN(lockstep::RecordCache records,
             lockstep::RecordCache::from_bytes(std::make_shared<const std::string>(std::move(bytes)), "fuzz",
                                               lockstep::kImageCache));
  return lockstep::ImageCache::from_records(std::move(records));
}

void read_all(const lockstep::ImageCache& cache) {
  unsigned sum = 0;
  for (int64_t i = 0; i < cache.size(); ++i) {
    const auto pixels = cache.pixels(i);
    if (!pixels.ok()) continue;
    LOCKSTEP_CHECK(static_cast<int64_t>(pixels->size()) == cache.side() * cache.side() * 3, "a whole image");
    for (const uint8_t value : *pixels) sum += value;
    LOCKSTEP_CHECK(cache.label(i) == 0 || cache.label(i) < static_cast<int64_t>(cache.classes().size()), "a class");
  }
  volatile unsigned keep = sum;
  static_cast<void>(keep);
}

// The size that the header says, by offsets; 0 where it says none.
uint64_t png_pixels(const std::string& bytes) {
  if (bytes.size() < 24) return 0;
  const auto word = [&](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value * 256 + static_cast<uint8_t>(bytes[at + i]);
    return value;
  };
  return bytes.starts_with("\x89PNG") ? word(16) * (word(20) + 1) : 0;
}

// A PNG with the right checksum in each chunk: a changed file would rarely have one.
std::string with_checksums(std::string bytes) {
  const auto put = [&](size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(value >> (24 - 8 * i));
  };
  for (size_t at = 8; at + 12 <= bytes.size();) {
    uint32_t size = 0;
    for (size_t i = 0; i < 4; ++i) size = size << 8 | static_cast<uint8_t>(bytes[at + i]);
    if (size > bytes.size() - at - 12) break;
    put(at + 8 + size, lockstep::crc32_of(std::string_view(bytes).substr(at + 4, 4 + size)));
    at += 12 + size;
  }
  return bytes;
}

void check_image(const std::string& bytes, int64_t side) {
  if (png_pixels(bytes) > kFuzzPixels && png_pixels(bytes) < uint64_t{2} * lockstep::kImagePixelsMax) return;
  lockstep::Result<lockstep::Image> image = lockstep::decode_image(bytes, side);
  if (!image.ok()) {
    LOCKSTEP_CHECK(!image.error().message.empty(), "a refusal says why");
    return;
  }
  LOCKSTEP_CHECK(static_cast<int64_t>(image->rgb.size()) == image->width * image->height * 3, "all pixels");
  const lockstep::Image cut = lockstep::centre_crop(std::move(*image), side);
  const std::vector<std::string> no_classes;
  lockstep::RecordCacheWriter writer(lockstep::kImageCache);
  writer.add({reinterpret_cast<const char*>(cut.rgb.data()), cut.rgb.size()}, 0);
  const auto cache = cache_from(std::move(writer).finish(lockstep::image_facts(side, no_classes), {}, {}));
  LOCKSTEP_CHECK(cache.ok() && cache->pixels(0).ok(), "what was written is read");
  const auto again = lockstep::decode_image(lockstep::png_bytes(cut.rgb, side, side), side);
  LOCKSTEP_CHECK(again.ok() && again->rgb == cut.rgb, "what was written as PNG is read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto cache = cache_from(bytes);
    if (cache.ok()) read_all(*cache);
  } else {
    check_image(data[0] % 4 == 3 ? with_checksums(bytes) : bytes, 1 + data[0] / 4);
  }
  return 0;
}
