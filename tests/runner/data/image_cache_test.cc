#include "runner/models/jit/data/image_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/sha256.h"
#include "tests/runner/data/image_bytes.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kSide = 4;
const std::vector<std::string> kClasses = {"cat", "dog"};
const std::vector<SkippedFile> kSkipped = {{"dog/c.jpg", "is empty"}};
// Offsets in the header that image_cache.cc writes.
constexpr size_t kVersionAt = 8;
constexpr size_t kFileBytesAt = 16;
constexpr size_t kNumImagesAt = 24;
constexpr size_t kSideAt = 32;
constexpr size_t kDigestAt = 64;
constexpr size_t kHeaderBytes = 128;

LabelledImage labelled(int seed, int64_t label) { return {test_image(kSide, kSide, seed).rgb, label}; }

std::string image_cache_bytes(const std::vector<LabelledImage>& images, int64_t side,
                              const std::vector<std::string>& classes, const std::vector<SkippedFile>& skipped) {
  ImageCacheWriter writer(static_cast<int64_t>(images.size()), side, classes);
  for (const LabelledImage& image : images) writer.add(image);
  return std::move(writer).finish(skipped);
}

std::string cache_bytes() { return image_cache_bytes({labelled(1, 0), labelled(2, 1)}, kSide, kClasses, kSkipped); }

Result<ImageCache> opened(std::string bytes) {
  return ImageCache::from_bytes(std::make_shared<const std::string>(std::move(bytes)), "test.cache");
}

template <typename T>
std::string with(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
  return bytes;
}

TEST(ImageCache, holds_what_was_put_into_it) {
  const TemporaryFolder folder;
  const Result<ImageCache> cache = ImageCache::open(disk(), folder.write("a.cache", cache_bytes()));
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(cache->size(), 2);
  EXPECT_EQ(cache->side(), kSide);
  EXPECT_EQ(cache->classes(), kClasses);
  EXPECT_EQ(cache->skipped(), kSkipped);
  EXPECT_EQ(cache->label(0), 0);
  EXPECT_EQ(cache->label(1), 1);
  const auto pixels = *cache->pixels(1);
  EXPECT_EQ(std::vector<uint8_t>(pixels.begin(), pixels.end()), labelled(2, 1).rgb);
  EXPECT_EQ(cache->digest().size(), 64U);
}

TEST(ImageCache, without_classes_all_labels_are_0) {
  const Result<ImageCache> cache = opened(image_cache_bytes({labelled(1, 0)}, kSide, {}, {}));
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_TRUE(cache->classes().empty());
  EXPECT_EQ(cache->label(0), 0);
}

TEST(ImageCache, its_digest_says_what_differs) {
  const std::string digest = opened(cache_bytes())->digest();
  const auto other = [](const std::vector<LabelledImage>& images, const std::vector<std::string>& classes) {
    return opened(image_cache_bytes(images, kSide, classes, kSkipped))->digest();
  };
  EXPECT_EQ(other({labelled(1, 0), labelled(2, 1)}, kClasses), digest);
  EXPECT_NE(other({labelled(1, 0), labelled(3, 1)}, kClasses), digest);
  EXPECT_NE(other({labelled(1, 0), labelled(2, 0)}, kClasses), digest);
  EXPECT_NE(other({labelled(1, 0), labelled(2, 1)}, {"cat", "fox"}), digest);
}

TEST(ImageCache, parts_joined_are_the_cache_made_at_once) {
  const Result<ImageCache> first = opened(image_cache_bytes({labelled(1, 0)}, kSide, kClasses, {}));
  const Result<ImageCache> second = opened(image_cache_bytes({labelled(2, 1)}, kSide, kClasses, kSkipped));
  std::string joined;
  const ByteSink sink = [&](const void* data, size_t bytes) {
    joined.append(static_cast<const char*>(data), bytes);
    return Status();
  };
  ASSERT_TRUE(write_image_cache({&*first, &*second}, sink).ok());
  EXPECT_EQ(joined, cache_bytes());
}

TEST(ImageCache, parts_of_another_size_or_of_other_classes_are_not_joined) {
  const Result<ImageCache> first = opened(image_cache_bytes({labelled(1, 0)}, kSide, kClasses, {}));
  const Result<ImageCache> flat = opened(image_cache_bytes({labelled(1, 0)}, kSide, {}, {}));
  const Result<ImageCache> large = opened(image_cache_bytes({{test_image(8, 8).rgb, 0}}, 8, kClasses, {}));
  const ByteSink nowhere = [](const void*, size_t) { return Status(); };
  for (const ImageCache* other : {&*flat, &*large}) {
    const Status joined = write_image_cache({&*first, other}, nowhere);
    ASSERT_FALSE(joined.ok());
    EXPECT_THAT(joined.error().message, HasSubstr("of another size or of other classes"));
  }
}

TEST(ImageCache, cut_off_anywhere_it_is_refused) {
  const std::string whole = cache_bytes();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Result<ImageCache> cache = opened(whole.substr(0, bytes));
    ASSERT_FALSE(cache.ok()) << bytes;
    EXPECT_EQ(cache.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(cache.error().message, HasSubstr("test.cache"));
  }
  const TemporaryFolder folder;
  EXPECT_FALSE(ImageCache::open(disk(), folder.write("empty.cache", "")).ok());
  EXPECT_FALSE(ImageCache::open(disk(), folder.path()).ok());
  EXPECT_EQ(ImageCache::open(disk(), folder.file("absent")).error().code, ErrorCode::kNotFound);
}

TEST(ImageCache, a_changed_byte_is_found_before_it_is_used) {
  const std::string whole = cache_bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    const Result<ImageCache> cache = opened(changed);
    if (!cache.ok()) continue;
    bool is_refused = cache->skipped() != kSkipped;  // they are text, not checked
    for (int64_t i = 0; i < cache->size(); ++i) is_refused = is_refused || !cache->pixels(i).ok();
    EXPECT_TRUE(is_refused) << "byte " << at;
  }
}

TEST(ImageCache, another_version_is_named) {
  const Result<ImageCache> cache = opened(with<uint32_t>(cache_bytes(), kVersionAt, kImageCacheVersion + 1));
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::kConflict);
  EXPECT_THAT(cache.error().message, HasSubstr("version " + std::to_string(kImageCacheVersion + 1)));
  EXPECT_THAT(cache.error().message, HasSubstr("remove the file"));
}

// The contents are wrong, and the checksums fit them.
TEST(ImageCache, a_made_up_one_is_refused) {
  const std::string whole = cache_bytes();
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{3}, ~uint64_t{0}, uint64_t{1} << 61}) {
    EXPECT_FALSE(opened(with(whole, kNumImagesAt, count)).ok()) << count;
  }
  for (const uint64_t side : {uint64_t{0}, uint64_t{3}, uint64_t{5}, ~uint64_t{0}, uint64_t{1} << 32}) {
    EXPECT_FALSE(opened(with(whole, kSideAt, side)).ok()) << side;
  }
  // A label beyond the classes.
  const size_t index = kHeaderBytes + 2 * kSide * kSide * 3;
  std::string beyond = with<uint32_t>(whole, index + 4, 2);
  const size_t digested = whole.find("[[\"dog/c.jpg\"") - index;
  const std::string digest = sha256_hex(std::string_view(beyond).substr(index, digested));
  beyond.replace(kDigestAt, digest.size(), digest);
  const Result<ImageCache> cache = opened(beyond);
  ASSERT_FALSE(cache.ok());
  EXPECT_THAT(cache.error().message, HasSubstr("has a damaged index (image 0)"));
  EXPECT_THAT(opened(with<uint64_t>(whole + "x", kFileBytesAt, whole.size() + 1)).error().message,
              HasSubstr("has a damaged header"));
}

}  // namespace
}  // namespace lockstep
