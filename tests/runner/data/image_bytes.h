// Images and the bytes of their files, made for tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>
// After <cstdio>, which it needs.
#include <jpeglib.h>

#include "runner/models/jit/data/image_file.h"

namespace lockstep {

// A slope of colours that differs with `seed`.
inline Image test_image(int64_t width, int64_t height, int seed = 0) {
  Image image{.width = width, .height = height, .rgb = {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      image.rgb.push_back(static_cast<uint8_t>(x * 255 / width));
      image.rgb.push_back(static_cast<uint8_t>(y * 255 / height));
      image.rgb.push_back(static_cast<uint8_t>(seed * 31));
    }
  }
  return image;
}

inline std::string test_png(int64_t width, int64_t height, int seed = 0) {
  return png_bytes(test_image(width, height, seed).rgb, width, height);
}

// samples: [height, width, channels]; 1 channel is grey, 3 are RGB, 4 are CMYK.
inline std::string test_jpeg(std::span<const uint8_t> samples, int64_t width, int64_t height, int channels = 3,
                             bool is_progressive = false) {
  jpeg_compress_struct jpeg = {};
  jpeg_error_mgr errors = {};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): as libjpeg has it
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = channels;
  jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  if (is_progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<uint8_t*>(samples.data()) + size_t{jpeg.next_scanline} * jpeg.image_width * channels;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string text(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&jpeg);
  std::free(bytes);
  return text;
}

inline std::string test_jpeg(int64_t width, int64_t height, int seed = 0, bool is_progressive = false) {
  return test_jpeg(test_image(width, height, seed).rgb, width, height, 3, is_progressive);
}

}  // namespace lockstep
