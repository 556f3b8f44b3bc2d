// One image: the bytes of a JPEG or PNG file → RGB pixels, and RGB pixels → the bytes of a PNG file.
//
// Role: the only code that uses libjpeg-turbo and libpng. The output is always 8-bit RGB:
//   grey and palettes   become RGB; 16 bits become 8 (PNG)
//   transparency        is blended with white, as on a web page (PNG)
//   CMYK, YCCK          become RGB without a colour profile, as Pillow does it (JPEG)
//   animated PNG        its first picture
// Colour profiles and the EXIF orientation are ignored, as by the public image loaders of diffusion models.
// Threads: pure functions. Memory: 3 bytes per decoded pixel, and 6 more for a progressive JPEG; for a PNG that of
// plain_png_samples before that.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// 134 million. Checked in the header, before memory is allocated.
inline constexpr int64_t kImagePixelsMax = int64_t{1} << 27;

struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
  // The part of width and height, in pixels, that the picture covers. When a JPEG is decoded at 1/2, 1/4 or 1/8 and its
  // size is not a multiple of that, the last column or row is only partly covered.
  double covered_width = static_cast<double>(width);
  double covered_height = static_cast<double>(height);
};

// A JPEG is decoded directly at 1/2, 1/4 or 1/8 of its size, halved as often as centre_crop(image, side) would halve it
// (test_images.py tests how close the results are). side = 0: at its own size. Errors, without the file's name:
// kInvalid (empty, neither JPEG nor PNG: says what it is; too many pixels), kCorrupt (truncated or damaged, even if
// only in part).
Result<Image> decode_image(std::string_view bytes, int64_t side);

// rgb: [height, width, 3]; height and width at least 1.
std::string png_bytes(std::span<const uint8_t> rgb, int64_t width, int64_t height);

}  // namespace lockstep
