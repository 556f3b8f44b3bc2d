#include "runner/models/jit/data/image_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "cache files are little-endian");

constexpr std::array<char, 8> kImageMagic = {'L', 'S', 'I', 'M', 'A', 'G', 'E', '\n'};
constexpr size_t kHexDigits = 64;

// Offsets and sizes in bytes from the beginning of the file.
struct ImageHeader {
  std::array<char, 8> magic = kImageMagic;
  uint32_t version = kImageCacheVersion;
  uint32_t header_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t num_images = 0;  // their pixels follow the header
  uint64_t side = 0;
  uint64_t index_offset = 0;                 // num_images ImageCacheEntry
  uint64_t classes_bytes = 0;                // JSON: [name, …]; follow the index
  uint64_t skipped_bytes = 0;                // JSON: [[file, reason], …]; follow the classes
  std::array<char, kHexDigits> digest = {};  // SHA-256 of index and classes
};
static_assert(sizeof(ImageHeader) == 128 && std::is_trivially_copyable_v<ImageHeader>);

static_assert(sizeof(ImageCacheEntry) == 8 && std::is_trivially_copyable_v<ImageCacheEntry>);

template <typename T>
std::string_view bytes_of_object(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof(T)};
}

ImageCacheEntry entry_at(std::string_view bytes, uint64_t index_offset, int64_t i) {
  ImageCacheEntry entry;
  std::memcpy(&entry, bytes.data() + index_offset + static_cast<uint64_t>(i) * sizeof(ImageCacheEntry),
              sizeof(ImageCacheEntry));
  return entry;
}

std::string_view chars_of(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The file without the pixels.
struct Frame {
  std::string header;
  std::string trailer;
};

Frame frame_of(const std::vector<ImageCacheEntry>& index, int64_t side, const std::vector<std::string>& classes,
               const std::vector<SkippedFile>& skipped) {
  Frame frame;
  frame.trailer.assign(reinterpret_cast<const char*>(index.data()), index.size() * sizeof(ImageCacheEntry));
  const std::string names = dump_line(Json(classes));
  frame.trailer += names;
  const std::string digest = sha256_hex(frame.trailer);
  const std::string files = skipped_text(skipped);
  frame.trailer += files;
  ImageHeader header;
  header.header_bytes = sizeof(ImageHeader);
  header.num_images = index.size();
  header.side = static_cast<uint64_t>(side);
  header.index_offset = sizeof(ImageHeader) + index.size() * static_cast<uint64_t>(side * side * 3);
  header.classes_bytes = names.size();
  header.skipped_bytes = files.size();
  header.file_bytes = header.index_offset + frame.trailer.size();
  std::copy(digest.begin(), digest.end(), header.digest.begin());
  frame.header = bytes_of_object(header);
  return frame;
}

}  // namespace

ImageCacheWriter::ImageCacheWriter(int64_t num_images, int64_t side, const std::vector<std::string>& classes)
    : side_(side), classes_(classes) {
  constexpr size_t kTrailerBytes = size_t{64} << 10;  // of most: classes and skipped files
  bytes_.reserve(static_cast<size_t>(num_images) * (static_cast<size_t>(side * side * 3) + sizeof(ImageCacheEntry)) +
                 kTrailerBytes);
  bytes_.resize(sizeof(ImageHeader));
}

void ImageCacheWriter::add(const LabelledImage& image) {
  LOCKSTEP_CHECK(image.rgb.size() == static_cast<size_t>(side_ * side_ * 3) && image.label >= 0 &&
                     image.label < std::max<int64_t>(1, static_cast<int64_t>(classes_.size())),
                 "an image of this side and these classes");
  index_.push_back({.crc32 = crc32_of(chars_of(image.rgb)), .label = static_cast<uint32_t>(image.label)});
  bytes_ += chars_of(image.rgb);
}

std::string ImageCacheWriter::finish(const std::vector<SkippedFile>& skipped) && {
  const Frame frame = frame_of(index_, side_, classes_, skipped);
  std::copy(frame.header.begin(), frame.header.end(), bytes_.begin());
  return std::move(bytes_) + frame.trailer;
}

Status write_image_cache(const std::vector<const ImageCache*>& parts, const ByteSink& sink) {
  const ImageCache& first = *parts.at(0);
  std::vector<ImageCacheEntry> index;
  std::vector<SkippedFile> skipped;
  for (const ImageCache* part : parts) {
    if (part->side_ != first.side_ || part->classes_ != first.classes_) {
      return part->corrupt("is of another size or of other classes than " + first.what_);
    }
    skipped.insert(skipped.end(), part->skipped_.begin(), part->skipped_.end());
    for (int64_t i = 0; i < part->num_images_; ++i) {
      index.push_back(entry_at(part->file_.bytes, part->index_offset_, i));
    }
  }
  const Frame frame = frame_of(index, first.side_, first.classes_, skipped);
  TRY(sink(frame.header.data(), frame.header.size()));
  for (const ImageCache* part : parts) {
    for (int64_t i = 0; i < part->num_images_; ++i) {
      TRY_ASSIGN(const std::span<const uint8_t> pixels, part->pixels(i));  // with its checksum
      TRY(sink(pixels.data(), pixels.size()));
    }
  }
  return sink(frame.trailer.data(), frame.trailer.size());
}

Result<ImageCache> ImageCache::open(FileSystem& fs, const std::string& path) {
  ImageCache cache;
  cache.what_ = path;
  TRY_ASSIGN(cache.file_, map_cache_file(fs, path));
  TRY(cache.check());
  return cache;
}

Result<ImageCache> ImageCache::from_bytes(std::shared_ptr<const std::string> bytes, const std::string& what) {
  ImageCache cache;
  cache.what_ = what;
  cache.file_.bytes = *bytes;
  cache.file_.memory = std::move(bytes);
  TRY(cache.check());
  return cache;
}

Error ImageCache::corrupt(const std::string& message) const {
  return Error{ErrorCode::kCorrupt, what_ + ": " + message + "; remove the file, it is made again from its source"};
}

Status ImageCache::check() {
  const std::string_view bytes = file_.bytes;
  if (bytes.size() < sizeof(ImageHeader) ||
      !bytes.starts_with(std::string_view(kImageMagic.data(), kImageMagic.size()))) {
    return corrupt("is no image cache, or cut off");
  }
  ImageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(ImageHeader));
  if (header.version != kImageCacheVersion) {
    return Error{ErrorCode::kConflict, what_ + ": is an image cache of version " + std::to_string(header.version) +
                                           "; this program reads version " + std::to_string(kImageCacheVersion) +
                                           ": remove the file, it is made again from its source"};
  }
  if (header.header_bytes != sizeof(ImageHeader)) return corrupt("has a damaged header");
  if (header.file_bytes != bytes.size()) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes instead of " + std::to_string(header.file_bytes));
  }
  if (header.side < 1 || header.side > static_cast<uint64_t>(kImageSideMax)) return corrupt("has a damaged header");
  side_ = static_cast<int64_t>(header.side);
  const uint64_t rest = bytes.size() - sizeof(ImageHeader);
  if (header.num_images > rest / (image_bytes() + sizeof(ImageCacheEntry)) ||
      header.index_offset != sizeof(ImageHeader) + header.num_images * image_bytes()) {
    return corrupt("has a damaged header");
  }
  const uint64_t index_bytes = header.num_images * sizeof(ImageCacheEntry);
  const uint64_t texts = bytes.size() - header.index_offset - index_bytes;
  if (header.classes_bytes > texts || header.skipped_bytes != texts - header.classes_bytes) {
    return corrupt("has a damaged header");
  }
  num_images_ = static_cast<int64_t>(header.num_images);
  index_offset_ = header.index_offset;
  digest_ = sha256_hex(bytes.substr(index_offset_, index_bytes + header.classes_bytes));
  if (digest_ != std::string_view(header.digest.data(), kHexDigits)) return corrupt("has a damaged index");
  const Result<Json> names = parse_json(bytes.substr(index_offset_ + index_bytes, header.classes_bytes), what_);
  if (!names.ok() || !names->is_array()) return corrupt("has a damaged list of classes");
  for (const Json& name : *names) {
    if (!name.is_string()) return corrupt("has a damaged list of classes");
    classes_.push_back(name.get<std::string>());
  }
  for (int64_t i = 0; i < num_images_; ++i) {
    if (entry_at(bytes, index_offset_, i).label >= std::max<size_t>(1, classes_.size())) {
      return corrupt("has a damaged index (image " + std::to_string(i) + ")");
    }
  }
  Result<std::vector<SkippedFile>> skipped = parse_skipped(bytes.substr(bytes.size() - header.skipped_bytes));
  if (!skipped.ok()) return corrupt(skipped.error().message);
  skipped_ = std::move(*skipped);
  return {};
}

Result<std::span<const uint8_t>> ImageCache::pixels(int64_t i) const {
  LOCKSTEP_CHECK(i >= 0 && i < num_images_, "no image of this cache");
  const std::string_view pixels =
      file_.bytes.substr(sizeof(ImageHeader) + static_cast<uint64_t>(i) * image_bytes(), image_bytes());
  if (crc32_of(pixels) != entry_at(file_.bytes, index_offset_, i).crc32) {
    return corrupt("image " + std::to_string(i) + " is damaged");
  }
  return std::span<const uint8_t>(reinterpret_cast<const uint8_t*>(pixels.data()), pixels.size());
}

int64_t ImageCache::label(int64_t i) const {
  LOCKSTEP_CHECK(i >= 0 && i < num_images_, "no image of this cache");
  return entry_at(file_.bytes, index_offset_, i).label;
}

}  // namespace lockstep
