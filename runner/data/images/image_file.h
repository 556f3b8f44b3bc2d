// One image: the bytes of a JPEG or PNG file → RGB pixels, and RGB pixels → the bytes of a PNG file.
//
// Role: the only source that knows libjpeg-turbo and libpng. What comes out is 8-bit RGB, whatever went in:
//   grey and palettes   become RGB; 16 bits become 8 (PNG)
//   transparency        is laid on white, as a page shows it (PNG)
//   CMYK, YCCK          become RGB without a colour profile, as Pillow does it (JPEG)
//   animated PNG        its first picture
// Colour profiles and EXIF's orientation are left alone, as the public image loaders of diffusion models leave them.
// Threads: pure functions. Memory: 3 bytes a pixel of what is decoded, and for a progressive JPEG 6 more.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

// More pixels are refused by the header alone, before memory is taken for them. 134 million.
inline constexpr int64_t kImagePixelsMax = int64_t{1} << 27;

struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
  // In pixels: what the picture covers of them. Less than width and height, by less than 1, where a JPEG's size was no
  // multiple of what it was decoded at.
  double covered_width = static_cast<double>(width);
  double covered_height = static_cast<double>(height);
};

// A JPEG may come out at 1/2, 1/4 or 1/8 of its size, decoded at that size at once: halved as often as
// centre_crop(image, side) would halve it (test_images.py says how near the results are). side = 0: at its own size.
// Errors, without the file's name: kInvalid (empty, neither JPEG nor PNG: says what it is; too many pixels), kCorrupt
// (cut off or damaged: a picture of which a part is missing is none).
Result<Image> decode_image(std::string_view bytes, int64_t side);

// rgb: [height, width, 3], neither of them 0.
std::string png_bytes(std::span<const uint8_t> rgb, int64_t width, int64_t height);

}  // namespace lockstep
