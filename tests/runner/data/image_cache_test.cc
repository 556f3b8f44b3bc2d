// RecordCache by the images in it: what is in the file, and which files are refused.
#include "runner/models/jit/data/image_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/sha256.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kSide = 4;
const std::vector<std::string> kClasses = {"cat", "dog"};
const std::vector<SkippedFile> kSkipped = {{"dog/c.jpg", "is empty"}};
// Offsets in the header that record_cache.cc writes.
constexpr size_t kVersionAt = 8;
constexpr size_t kFileBytesAt = 16;
constexpr size_t kNumRecordsAt = 24;
constexpr size_t kDigestAt = 48;
constexpr size_t kHeaderBytes = 112;

struct TestImage {
  int seed = 0;
  uint32_t label = 0;
};

std::string pixels_of(int seed, int64_t side = kSide) {
  std::string pixels(static_cast<size_t>(side * side * 3), '\0');
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<char>(static_cast<size_t>(seed) * 31 + i * 7);
  return pixels;
}

std::string image_cache_bytes(const std::vector<TestImage>& images, int64_t side,
                              const std::vector<std::string>& classes, const std::vector<SkippedFile>& skipped) {
  RecordCacheWriter writer(kImageCache);
  for (const TestImage& image : images) writer.add(pixels_of(image.seed, side), image.label);
  return std::move(writer).finish(image_facts(side, classes), skipped, {});
}

std::string cache_bytes() { return image_cache_bytes({{1, 0}, {2, 1}}, kSide, kClasses, kSkipped); }

Result<RecordCache> records_in(std::string bytes) {
  return RecordCache::from_bytes(std::make_shared<const std::string>(std::move(bytes)), "test.cache", kImageCache);
}

Result<ImageCache> opened(std::string bytes) {
  TRY_ASSIGN(RecordCache records, records_in(std::move(bytes)));
  return ImageCache::from_records(std::move(records));
}

template <typename T>
std::string with(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
  return bytes;
}

// A cache with other bytes in its index or facts, and the digest of these.
std::string with_digest(std::string bytes, size_t index) {
  const size_t digested = bytes.find("[[[\"dog/c.jpg\"") - index;
  const std::string digest = sha256_hex(std::string_view(bytes).substr(index, digested));
  bytes.replace(kDigestAt, digest.size(), digest);
  return bytes;
}

TEST(ImageCache, holds_what_was_put_into_it) {
  const TemporaryFolder folder;
  Result<RecordCache> records = RecordCache::open(disk(), folder.write("a.cache", cache_bytes()), kImageCache);
  ASSERT_TRUE(records.ok()) << records.error().message;
  const Result<ImageCache> cache = ImageCache::from_records(std::move(*records));
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(cache->size(), 2);
  EXPECT_EQ(cache->side(), kSide);
  EXPECT_EQ(cache->classes(), kClasses);
  EXPECT_EQ(cache->skipped(), kSkipped);
  EXPECT_EQ(cache->label(0), 0);
  EXPECT_EQ(cache->label(1), 1);
  const auto pixels = *cache->pixels(1);
  EXPECT_EQ(std::string(pixels.begin(), pixels.end()), pixels_of(2));
  EXPECT_EQ(cache->digest().size(), 64U);
}

TEST(ImageCache, without_classes_all_labels_are_0) {
  const Result<ImageCache> cache = opened(image_cache_bytes({{1, 0}}, kSide, {}, {}));
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_TRUE(cache->classes().empty());
  EXPECT_EQ(cache->label(0), 0);
}

TEST(ImageCache, its_digest_says_what_differs) {
  const std::string digest = opened(cache_bytes())->digest();
  const auto other = [](const std::vector<TestImage>& images, const std::vector<std::string>& classes) {
    return opened(image_cache_bytes(images, kSide, classes, kSkipped))->digest();
  };
  EXPECT_EQ(other({{1, 0}, {2, 1}}, kClasses), digest);
  EXPECT_NE(other({{1, 0}, {3, 1}}, kClasses), digest);
  EXPECT_NE(other({{1, 0}, {2, 0}}, kClasses), digest);
  EXPECT_NE(other({{1, 0}, {2, 1}}, {"cat", "fox"}), digest);
}

TEST(RecordCache, parts_joined_are_the_cache_made_at_once) {
  const Result<RecordCache> first = records_in(image_cache_bytes({{1, 0}}, kSide, kClasses, {}));
  const Result<RecordCache> second = records_in(image_cache_bytes({{2, 1}}, kSide, kClasses, kSkipped));
  std::string joined;
  const ByteSink sink = [&](const void* data, size_t bytes) {
    joined.append(static_cast<const char*>(data), bytes);
    return Status();
  };
  ASSERT_TRUE(write_record_cache(kImageCache, {&*first, &*second}, sink).ok());
  EXPECT_EQ(joined, cache_bytes());
  const Result<RecordCache> large = records_in(image_cache_bytes({{1, 0}}, 8, kClasses, {}));
  EXPECT_THAT(write_record_cache(kImageCache, {&*first, &*large}, sink).error().message,
              HasSubstr("was prepared in another way than test.cache"));
}

TEST(RecordCache, a_record_of_any_length_is_aligned_and_checked_with_what_follows_it) {
  RecordCacheWriter writer(kImageCache);
  writer.add("abc", 7);
  writer.add("", 8);
  const std::string whole = std::move(writer).finish(Json::object(), {}, {{"a", "b"}});
  const Result<RecordCache> cache = records_in(whole);
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  EXPECT_EQ(*cache->record(0), "abc");
  EXPECT_EQ(*cache->record(1), "");
  EXPECT_EQ(cache->tag(0), 7U);
  EXPECT_EQ(cache->remarks(), (std::vector<SkippedFile>{{"a", "b"}}));
  EXPECT_FALSE(records_in(with<char>(whole, kHeaderBytes + 5, 'x'))->record(0).ok());
}

TEST(RecordCache, cut_off_anywhere_it_is_refused) {
  const std::string whole = cache_bytes();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Result<ImageCache> cache = opened(whole.substr(0, bytes));
    ASSERT_FALSE(cache.ok()) << bytes;
    EXPECT_EQ(cache.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(cache.error().message, HasSubstr("test.cache"));
  }
  const TemporaryFolder folder;
  EXPECT_FALSE(RecordCache::open(disk(), folder.write("empty.cache", ""), kImageCache).ok());
  EXPECT_FALSE(RecordCache::open(disk(), folder.path(), kImageCache).ok());
  EXPECT_EQ(RecordCache::open(disk(), folder.file("absent"), kImageCache).error().code, ErrorCode::kNotFound);
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

TEST(RecordCache, another_version_is_named) {
  const Result<ImageCache> cache = opened(with<uint32_t>(cache_bytes(), kVersionAt, kImageCache.version + 1));
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::kConflict);
  EXPECT_THAT(cache.error().message, HasSubstr("version " + std::to_string(kImageCache.version + 1)));
  EXPECT_THAT(cache.error().message, HasSubstr("remove the file"));
}

// The contents are wrong, and the checksums fit them.
TEST(ImageCache, a_made_up_one_is_refused) {
  const std::string whole = cache_bytes();
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{3}, ~uint64_t{0}, uint64_t{1} << 61}) {
    EXPECT_FALSE(opened(with(whole, kNumRecordsAt, count)).ok()) << count;
  }
  EXPECT_THAT(opened(with<uint64_t>(whole + "x", kFileBytesAt, whole.size() + 1)).error().message,
              HasSubstr("has a damaged list"));
  const size_t index = kHeaderBytes + 2 * kSide * kSide * 3;
  EXPECT_THAT(opened(with_digest(with<uint32_t>(whole, index + 20, 2), index)).error().message,
              HasSubstr("has a damaged index (image 0)"))
      << "a label beyond the classes";
  for (const uint64_t offset : {uint64_t{0}, uint64_t{kHeaderBytes + 4}, uint64_t{index}, ~uint64_t{7}}) {
    EXPECT_FALSE(records_in(with_digest(with(whole, index, offset), index)).ok()) << offset;
  }
  const Result<ImageCache> short_one = opened(with_digest(with<uint64_t>(whole, index + 8, 41), index));
  ASSERT_TRUE(short_one.ok());
  EXPECT_FALSE(short_one->pixels(0).ok());
  for (const Json& facts : {Json(), Json(3), image_facts(0, kClasses), image_facts(int64_t{1} << 32, kClasses),
                            Json{{"side", kSide}, {"classes", 3}}, Json{{"side", kSide}, {"classes", {3}}}}) {
    RecordCacheWriter writer(kImageCache);
    writer.add(pixels_of(1), 0);
    EXPECT_THAT(opened(std::move(writer).finish(facts, {}, {})).error().message, HasSubstr("has damaged facts"));
  }
}

}  // namespace
}  // namespace lockstep
