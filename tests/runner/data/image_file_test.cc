#include "runner/models/jit/data/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runner/data/cache_file.h"
#include "runner/models/jit/data/centre_crop.h"
#include "runner/models/jit/data/plain_png.h"
#include "tests/runner/data/image_bytes.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string big_endian(uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}

std::string png_chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(crc32_of(body));
}

// A PNG file whose header has this size, with next to nothing after it.
std::string png_that_says(uint32_t width, uint32_t height) {
  return "\x89PNG\r\n\x1A\n" +
         png_chunk("IHDR", big_endian(width) + big_endian(height) + std::string("\x08\x02\0\0\0", 5)) +
         png_chunk("IDAT", "x") + png_chunk("IEND", "");
}

std::string jpeg_that_says(uint16_t width, uint16_t height) {
  std::string bytes = test_jpeg(8, 8);
  const size_t frame = bytes.find("\xFF\xC0");
  bytes[frame + 5] = static_cast<char>(height >> 8);
  bytes[frame + 6] = static_cast<char>(height);
  bytes[frame + 7] = static_cast<char>(width >> 8);
  bytes[frame + 8] = static_cast<char>(width);
  return bytes;
}

int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(DecodeImage, reads_back_the_png_that_was_written) {
  for (const auto& [width, height] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 3}, {64, 64}}) {
    const Image image = test_image(width, height);
    const Result<Image> decoded = decode_image(png_bytes(image.rgb, width, height), 64);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(decoded->width, width);
    EXPECT_EQ(decoded->height, height);
    EXPECT_EQ(decoded->rgb, image.rgb);
  }
}

TEST(DecodeImage, reads_jpeg_plain_progressive_and_grey) {
  const Image image = test_image(60, 40);
  for (const bool is_progressive : {false, true}) {
    const Result<Image> decoded = decode_image(test_jpeg(60, 40, 0, is_progressive), 0);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_LE(largest_difference(decoded->rgb, image.rgb), 8);
  }
  const Result<Image> grey = decode_image(test_jpeg(std::vector<uint8_t>(100, 90), 10, 10, 1), 0);
  ASSERT_TRUE(grey.ok());
  EXPECT_LE(largest_difference(grey->rgb, std::vector<uint8_t>(300, 90)), 1);
}

TEST(DecodeImage, makes_rgb_of_the_inks_of_a_cmyk_jpeg) {
  std::vector<uint8_t> samples;  // as Adobe's programs write them, and libjpeg does: 255 minus the ink
  for (int i = 0; i < 64; ++i) samples.insert(samples.end(), {255, 0, 0, 200});
  const Result<Image> decoded = decode_image(test_jpeg(samples, 8, 8, 4), 0);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_NEAR(decoded->rgb[0], 200, 2);
  EXPECT_NEAR(decoded->rgb[1], 0, 2);
  EXPECT_NEAR(decoded->rgb[2], 0, 2);
}

TEST(DecodeImage, a_large_jpeg_is_decoded_as_small_as_the_crop_would_halve_it) {
  struct Case {
    int64_t width, height, side, expected_width, expected_height;
  };
  for (const Case& c : std::vector<Case>{{127, 200, 64, 127, 200},
                                         {255, 300, 64, 128, 150},
                                         {375, 500, 64, 94, 125},
                                         {1024, 600, 64, 128, 75},
                                         {2000, 1500, 64, 250, 188},
                                         {300, 200, 0, 300, 200}}) {
    const Result<Image> decoded = decode_image(test_jpeg(c.width, c.height), c.side);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->width, c.expected_width);
    EXPECT_EQ(decoded->height, c.expected_height);
    const Image whole = *decode_image(test_jpeg(c.width, c.height), 0);
    if (c.side == 0) continue;
    EXPECT_LE(largest_difference(centre_crop(*decoded, c.side).rgb, centre_crop(whole, c.side).rgb), 6);
  }
}

TEST(DecodeImage, what_is_cut_off_is_an_error_wherever_the_cut_is) {
  for (const std::string& whole : {test_jpeg(70, 50), test_jpeg(70, 50, 1, true), test_png(70, 50)}) {
    ASSERT_TRUE(decode_image(whole, 64).ok());
    for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
      const Result<Image> decoded = decode_image(whole.substr(0, bytes), 64);
      ASSERT_FALSE(decoded.ok()) << bytes << " of " << whole.size();
      EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(decoded.error().message, HasSubstr("cannot be decoded: "));
    }
  }
}

TEST(DecodeImage, changed_bytes_do_no_more_than_change_the_picture) {
  for (const std::string& whole : {test_jpeg(40, 30), test_jpeg(40, 30, 1, true), test_png(40, 30)}) {
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ 0x55);
      const Result<Image> decoded = decode_image(changed, 16);
      if (!decoded.ok()) {
        EXPECT_FALSE(decoded.error().message.empty());
        continue;
      }
      EXPECT_EQ(decoded->rgb.size(), static_cast<size_t>(decoded->width * decoded->height * 3));
    }
  }
}

TEST(DecodeImage, absurd_sizes_are_refused_by_the_header_alone) {
  for (const std::string& bytes : {png_that_says(100000, 100000), png_that_says(2'000'000'000, 2'000'000'000),
                                   jpeg_that_says(65000, 65000), png_that_says(1U << 27, 2)}) {
    const Result<Image> decoded = decode_image(bytes, 64);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.error().code, ErrorCode::kInvalid) << decoded.error().message;
    EXPECT_THAT(decoded.error().message, HasSubstr("at most 134 million are read"));
  }
  EXPECT_THAT(decode_image(png_that_says(100000, 100000), 64).error().message, HasSubstr("100000 x 100000 pixels"));
  EXPECT_THAT(decode_image(png_that_says(0, 5), 64).error().message, HasSubstr("cannot be decoded"));
}

TEST(DecodeImage, of_a_png_libpng_says_what_is_damaged) {
  const std::string whole = test_png(40, 30);
  const size_t pixels = whole.find("IDAT");
  std::string changed = whole;
  changed[whole.size() - 12 - 1] ^= 1;  // its checksum
  EXPECT_EQ(decode_image(changed, 64).error().message, "cannot be decoded: IDAT: CRC error");
  // The right checksum of pixels that are not deflated, and of pixels that are too few.
  const std::string head = whole.substr(0, pixels - 4);
  const std::string end = png_chunk("IEND", "");
  EXPECT_THAT(decode_image(head + png_chunk("IDAT", "no zlib stream") + end, 64).error().message, HasSubstr("IDAT: "));
  // Of pixels whose own checksum, the last four bytes of the zlib stream, is wrong.
  const size_t size = whole.size() - pixels - 4 - 4 - 12;
  std::string data = whole.substr(pixels + 4, size);
  data.back() ^= 1;
  EXPECT_EQ(decode_image(head + png_chunk("IDAT", data) + end, 64).error().message,
            "cannot be decoded: IDAT: incorrect data check");
  const std::string small = test_png(40, 29);
  const std::string too_few = small.substr(small.find("IDAT") - 4);
  EXPECT_EQ(decode_image(head + too_few, 64).error().message, "cannot be decoded: Not enough image data");
}

// kind: bits, colour type, compression, filters, interlacing.
std::string png_of(uint32_t width, uint32_t height, const std::string& kind, const std::string& chunks,
                   const std::string& rows) {
  std::vector<Bytef> deflated(compressBound(rows.size()));
  uLongf size = deflated.size();
  EXPECT_EQ(compress(deflated.data(), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size()), Z_OK);
  const std::string data(reinterpret_cast<const char*>(deflated.data()), size);
  return "\x89PNG\r\n\x1A\n" + png_chunk("IHDR", big_endian(width) + big_endian(height) + kind) + chunks +
         png_chunk("IDAT", data) + png_chunk("IEND", "");
}

std::string kind_of(char bits, char colour_type, char interlacing = 0) {
  return {bits, colour_type, 0, 0, interlacing};
}

// The filters of the PNG specification, section 9, as they are written there: the byte before x, above x, above that.
int predicted(int filter, int a, int b, int c) {
  const int p = a + b - c;
  const bool is_left = std::abs(p - a) <= std::abs(p - b) && std::abs(p - a) <= std::abs(p - c);
  const int paeth = is_left ? a : std::abs(p - b) <= std::abs(p - c) ? b : c;
  return std::vector<int>{0, a, b, (a + b) / 2, paeth}.at(static_cast<size_t>(filter));
}

std::string filtered(const std::vector<uint8_t>& values, size_t row_bytes, size_t channels, int filter) {
  std::string rows;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool has_left = i % row_bytes >= channels;
    const bool has_above = i >= row_bytes;
    if (i % row_bytes == 0) rows += static_cast<char>(filter);
    rows += static_cast<char>(values[i] - predicted(filter, has_left ? values[i - channels] : 0,
                                                    has_above ? values[i - row_bytes] : 0,
                                                    has_left && has_above ? values[i - row_bytes - channels] : 0));
  }
  return rows;
}

std::vector<uint8_t> random_bytes(size_t count) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 8);
  return bytes;
}

TEST(PlainPng, undoes_every_filter_of_every_number_of_channels) {
  const std::vector<char> colour_types = {0, 4, 2, 6};
  for (size_t channels = 1; channels <= 4; ++channels) {
    for (const uint32_t width : {1U, 2U, 37U}) {
      const size_t row_bytes = width * channels;
      const std::vector<uint8_t> values = random_bytes(row_bytes * 5);
      std::vector<uint8_t> expected;  // grey is repeated
      for (size_t i = 0; i < values.size(); ++i) {
        const bool is_grey = channels <= 2 && i % channels == 0;
        expected.insert(expected.end(), is_grey ? 3 : 1, values[i]);
        if (channels == 1) expected.push_back(255);
      }
      for (int filter = 0; filter <= 4; ++filter) {
        const auto samples = plain_png_samples(png_of(width, 5, kind_of(8, colour_types[channels - 1]), "",
                                                      filtered(values, row_bytes, channels, filter)));
        ASSERT_TRUE(samples);
        EXPECT_EQ(samples->width, width);
        EXPECT_EQ(samples->height, 5);
        EXPECT_EQ(samples->channels, channels == 3 ? 3 : 4);
        EXPECT_EQ(samples->values, expected) << channels << " channels, filter " << filter << ", width " << width;
      }
    }
  }
}

TEST(PlainPng, looks_up_colours_and_their_transparency) {
  const std::string palette = png_chunk("PLTE", "abcdef");
  const std::string rows{'\0', 1, 0, '\0', 2, 1};  // 2 is beyond the palette
  const auto values = [&](const std::string& chunks) {
    const auto samples = plain_png_samples(png_of(2, 2, kind_of(8, 3), chunks, rows));
    return samples ? std::string(samples->values.begin(), samples->values.end()) : "none";
  };
  EXPECT_EQ(values(palette), std::string("def\xFF"
                                         "abc\xFF"
                                         "\0\0\0\xFF"
                                         "def\xFF",
                                         16));
  EXPECT_EQ(values(palette + png_chunk("tRNS", "t")), std::string("def\xFF"
                                                                  "abct"
                                                                  "\0\0\0\xFF"
                                                                  "def\xFF",
                                                                  16));
  EXPECT_EQ(values(""), "none");
  EXPECT_EQ(values(palette + palette), "none");
  EXPECT_EQ(values(png_chunk("PLTE", "abcd")), "none");
  EXPECT_EQ(values(png_chunk("PLTE", std::string(257 * 3, 'x'))), "none");
  EXPECT_EQ(values(palette + png_chunk("tRNS", std::string(257, 'x'))), "none");
  EXPECT_EQ(values(png_chunk("tRNS", "t") + palette), "none");
}

TEST(PlainPng, joins_pixels_that_lie_in_several_chunks) {
  const Image image = test_image(64, 48);
  const std::string png = png_bytes(image.rgb, 64, 48);
  const size_t pixels = png.find("IDAT");
  const std::string head = png.substr(0, pixels - 4);
  const std::string data = png.substr(pixels + 4, png.size() - pixels - 4 - 4 - 12);
  const std::string first = png_chunk("IDAT", data.substr(0, 5)) + png_chunk("IDAT", "");
  const std::string second = png_chunk("IDAT", data.substr(5));
  const std::string end = png_chunk("tEXt", "after") + png_chunk("IEND", "");
  ASSERT_TRUE(plain_png_samples(head + png_chunk("tEXt", "before") + first + second + end));
  EXPECT_EQ(decode_image(head + first + second + end, 64)->rgb, image.rgb);
  EXPECT_FALSE(plain_png_samples(head + first + png_chunk("tEXt", "between") + second + end));
  EXPECT_FALSE(plain_png_samples(head + png_chunk("NEED", "to know") + first + second + end));
}

TEST(PlainPng, leaves_to_libpng_what_is_damaged_or_claims_to_be_large) {
  const std::string png = test_png(40, 30);
  for (size_t at = 0; at < png.size(); ++at) EXPECT_FALSE(plain_png_samples(png.substr(0, at))) << at;
  for (size_t at = 8; at < png.size(); ++at) {
    std::string changed = png;
    changed[at] ^= 1;
    EXPECT_FALSE(plain_png_samples(changed)) << at;
  }
  EXPECT_FALSE(plain_png_samples(png_that_says(100000, 100000)));
  EXPECT_FALSE(plain_png_samples(png_that_says(0xFFFFFFFF, 0xFFFFFFFF)));
  EXPECT_FALSE(plain_png_samples(png_that_says(0, 0)));
  EXPECT_FALSE(plain_png_samples(png_of(1, 1, kind_of(8, 0), "", std::string("\5x"))));      // no such filter
  EXPECT_FALSE(plain_png_samples(png_of(1, 1, kind_of(8, 0), "", std::string("\0xx", 3))));  // a byte too many
  EXPECT_FALSE(plain_png_samples(png_of(1, 1, kind_of(8, 0), "", std::string("\0", 1))));    // and too few
  EXPECT_FALSE(plain_png_samples(png_of(1, 1, kind_of(8, 1), "", std::string("\0x", 2))));   // no such colour type
  EXPECT_FALSE(plain_png_samples(png_of(1, 1, kind_of(8, 9), "", std::string("\0x", 2))));
}

TEST(DecodeImage, other_kinds_of_png_are_read_by_libpng) {
  struct Case {
    std::string png;
    std::vector<uint8_t> expected;
  };
  const std::string row("\0\1\2\3\4\5\6", 7);
  for (const auto& [png, expected] :
       std::vector<Case>{{png_of(1, 1, kind_of(16, 2), "", row), {1, 3, 5}},
                         {png_of(1, 1, kind_of(8, 2, 1), "", row.substr(0, 4)), {1, 2, 3}},
                         {png_of(2, 1, kind_of(8, 2), png_chunk("tRNS", std::string("\0\1\0\2\0\3", 6)), row),
                          {255, 255, 255, 4, 5, 6}},
                         {png_of(2, 1, kind_of(1, 0), "", std::string("\0\x40", 2)), {0, 0, 0, 255, 255, 255}}}) {
    EXPECT_FALSE(plain_png_samples(png));
    const Result<Image> image = decode_image(png, 64);
    ASSERT_TRUE(image.ok()) << image.error().message;
    EXPECT_EQ(image->rgb, expected);
  }
}

TEST(DecodeImage, blends_each_transparency_with_white) {
  std::string row(1, '\0');
  std::vector<uint8_t> expected;
  for (int alpha = 0; alpha < 255; ++alpha) {  // an odd number of pixels
    for (const int value : {alpha / 2, 255, 0, alpha}) row += static_cast<char>(value);
    for (const int value : {alpha / 2, 255, 0}) {
      expected.push_back(static_cast<uint8_t>(std::lround((value * alpha + 255 * (255 - alpha)) / 255.0)));
    }
  }
  const Result<Image> image = decode_image(png_of(255, 1, kind_of(8, 6), "", row), 64);
  ASSERT_TRUE(image.ok()) << image.error().message;
  EXPECT_EQ(image->rgb, expected);
}

TEST(DecodeImage, other_files_are_called_what_they_are) {
  const auto message = [](const std::string& bytes) { return decode_image(bytes, 64).error().message; };
  EXPECT_EQ(message(""), "is empty");
  EXPECT_EQ(message("GIF89a and so on"), "is a GIF file; JPEG and PNG files are read");
  EXPECT_EQ(message(std::string("RIFF\x10\0\0\0WEBPVP8 ", 16)), "is a WebP file; JPEG and PNG files are read");
  EXPECT_EQ(message("a label\n"), "is a text, no image; JPEG and PNG files are read");
  EXPECT_EQ(message(std::string("\x01\x02\x03\0", 4)), "is neither a JPEG nor a PNG file");
}

TEST(CentreCrop, takes_the_middle_and_keeps_what_has_the_size) {
  const Image square = test_image(16, 16);
  EXPECT_EQ(centre_crop(square, 16).rgb, square.rgb);
  const Image wide = test_image(20, 16);
  const Image cut = centre_crop(wide, 16);
  ASSERT_EQ(cut.rgb.size(), 16U * 16 * 3);
  EXPECT_EQ(cut.rgb[0], wide.rgb[2 * 3]);
  const Image dot = centre_crop(Image{.width = 1, .height = 1, .rgb = {10, 20, 30}}, 4);
  ASSERT_EQ(dot.rgb.size(), 48U);
  EXPECT_EQ(dot.rgb[45], 10);
  EXPECT_EQ(dot.rgb[47], 30);
}

TEST(CentreCrop, of_an_endless_strip_computes_the_middle_alone) {
  const Image strip{.width = 2'000'000, .height = 1, .rgb = std::vector<uint8_t>(6'000'000, 77)};
  EXPECT_EQ(centre_crop(strip, 64).rgb, std::vector<uint8_t>(64 * 64 * 3, 77));
}

}  // namespace
}  // namespace lockstep
