#include "runner/models/jit/data/image_file.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
// The order matters: jpeglib.h and jerror.h need the headers before them.
#include <jpeglib.h>
// clang-format off
#include <jerror.h>
// clang-format on
#include <png.h>

#include <optional>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/vector_loops.h"
#include "runner/models/jit/data/pixel_vectors.h"
#include "runner/models/jit/data/plain_png.h"

namespace lockstep {
namespace {

constexpr size_t kPixelBytes = 3;

Error damaged(const std::string& how) { return Error{ErrorCode::kCorrupt, "cannot be decoded: " + how}; }

std::optional<Error> too_many_pixels(uint64_t width, uint64_t height) {
  if (width > 0 && height > 0 && width <= kImagePixelsMax / height) return std::nullopt;
  return Error{ErrorCode::kInvalid, "says that it has " + std::to_string(width) + " x " + std::to_string(height) +
                                        " pixels; at most " + std::to_string(kImagePixelsMax / 1'000'000) +
                                        " million are read"};
}

// Both libraries report errors by longjmp, which skips destructors. So it may only jump over C code and over functions
// of this file without variables that have destructors; such variables are members of the decoder classes.

// How often centre_crop would halve the image, up to what libjpeg supports.
unsigned halvings(int64_t width, int64_t height, int64_t side) {
  unsigned count = 0;
  if (side > 0) {
    for (int64_t shorter = std::min(width, height); shorter >= 2 * side && count < 3; shorter /= 2) ++count;
  }
  return count;
}

class JpegDecoder {
 public:
  JpegDecoder() {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = [](j_common_ptr jpeg) {
      auto* self = static_cast<JpegDecoder*>(jpeg->client_data);
      jpeg->err->format_message(jpeg, self->message_.data());
      std::longjmp(self->on_error_, 1);  // NOLINT(cert-err52-cpp)
    };
    // libjpeg only warns when it fills in missing data; here that is an error.
    errors_.emit_message = [](j_common_ptr jpeg, int level) {
      if (level >= 0) return;
      switch (jpeg->err->msg_code) {
        case JWRN_EXTRANEOUS_DATA:  // extra bytes between segments; nothing is missing
        case JWRN_JFIF_MAJOR:
        case JWRN_ADOBE_XFORM:
          return;
        default:
          jpeg->err->error_exit(jpeg);
      }
    };
    errors_.output_message = [](j_common_ptr) {};
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() {
    if (is_created_) jpeg_destroy_decompress(&jpeg_);
  }

  Result<Image> decode(std::string_view bytes, int64_t side) {
    if (!read_header(bytes)) return damaged(message_.data());
    if (std::optional<Error> error = too_many_pixels(jpeg_.image_width, jpeg_.image_height)) return *error;
    if (jpeg_.jpeg_color_space == JCS_UNKNOWN) {
      return Error{ErrorCode::kInvalid, "has " + std::to_string(jpeg_.num_components) +
                                            " colours a pixel; JPEG files with 1 (grey), 3 or 4 (CMYK) are read"};
    }
    is_cmyk_ = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = is_cmyk_ ? JCS_CMYK : JCS_RGB;
    jpeg_.scale_num = 1;
    jpeg_.scale_denom = 1U << halvings(jpeg_.image_width, jpeg_.image_height, side);
    if (!start()) return damaged(message_.data());
    image_.width = jpeg_.output_width;
    image_.height = jpeg_.output_height;
    image_.covered_width = static_cast<double>(jpeg_.image_width) / jpeg_.scale_denom;
    image_.covered_height = static_cast<double>(jpeg_.image_height) / jpeg_.scale_denom;
    image_.rgb.resize(static_cast<size_t>(image_.width * image_.height) * kPixelBytes);
    if (is_cmyk_) cmyk_.resize(static_cast<size_t>(image_.width) * 4);
    if (!read_rows()) return damaged(message_.data());
    return std::move(image_);
  }

 private:
  bool read_header(std::string_view bytes) {
    if (setjmp(on_error_) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_create_decompress(&jpeg_);
    is_created_ = true;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  bool start() {
    if (setjmp(on_error_) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_start_decompress(&jpeg_);
    return true;
  }

  bool read_rows() {
    if (setjmp(on_error_) != 0) return false;  // NOLINT(cert-err52-cpp)
    while (jpeg_.output_scanline < jpeg_.output_height) {
      const size_t row = jpeg_.output_scanline;
      JSAMPROW into = image_.rgb.data() + row * static_cast<size_t>(image_.width) * kPixelBytes;
      if (is_cmyk_) {
        JSAMPROW from = cmyk_.data();
        jpeg_read_scanlines(&jpeg_, &from, 1);
        to_rgb(from, into);
      } else {
        jpeg_read_scanlines(&jpeg_, &into, 1);
      }
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  // Adobe's programs store inverted values (255 minus the ink).
  void to_rgb(const uint8_t* cmyk, uint8_t* rgb) const {
    const bool is_inverted = jpeg_.saw_Adobe_marker != FALSE;
    for (int64_t x = 0; x < image_.width; ++x, cmyk += 4, rgb += 3) {
      const unsigned white = is_inverted ? cmyk[3] : 255U - cmyk[3];
      for (size_t c = 0; c < kPixelBytes; ++c) {
        const unsigned rest = is_inverted ? cmyk[c] : 255U - cmyk[c];
        rgb[c] = static_cast<uint8_t>((rest * white + 127) / 255);
      }
    }
  }

  jpeg_decompress_struct jpeg_ = {};
  jpeg_error_mgr errors_ = {};
  std::jmp_buf on_error_ = {};
  std::array<char, JMSG_LENGTH_MAX> message_ = {};
  bool is_created_ = false;
  bool is_cmyk_ = false;
  Image image_;
  std::vector<uint8_t> cmyk_;  // a row
};

using EightShorts [[gnu::vector_size(16)]] = uint16_t;

// Two RGBA pixels → two RGB pixels and two bytes more.
[[gnu::always_inline]] inline void blend_two(const uint8_t* rgba, uint8_t* rgb) {
  SixteenBytes bytes = {};
  std::memcpy(&bytes, rgba, 8);
  const auto samples = reinterpret_cast<EightShorts>(
      __builtin_shufflevector(bytes, SixteenBytes{}, 0, 16, 1, 16, 2, 16, 3, 16, 4, 16, 5, 16, 6, 16, 7, 16));
  const EightShorts alpha = __builtin_shufflevector(samples, samples, 3, 3, 3, 3, 7, 7, 7, 7);
  const EightShorts sums = samples * alpha + (255 - alpha) * 255 + 127;
  const auto blended = reinterpret_cast<SixteenBytes>((sums + 1 + (sums >> 8)) >> 8);  // sums / 255, exactly
  bytes = __builtin_shufflevector(blended, blended, 0, 2, 4, 8, 10, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  std::memcpy(rgb, &bytes, 8);
}

// RGBA → RGB, in place. What blend_two writes beyond its pixels lies in pixels that were read already.
LOCKSTEP_VECTOR_CLONES
void blend_with_white(uint8_t* samples, int64_t pixels) {
  for (int64_t i = 0; i + 1 < pixels; i += 2) blend_two(samples + 4 * i, samples + 3 * i);
  if (pixels % 2 == 0) return;
  std::array<uint8_t, 8> last = {};
  std::copy_n(samples + 4 * (pixels - 1), 4, last.data());
  blend_two(last.data(), last.data());
  std::copy_n(last.data(), 3, samples + 3 * (pixels - 1));
}

class PngDecoder {
 public:
  explicit PngDecoder(std::string_view bytes) : rest_(bytes) {}
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }

  Result<PngSamples> decode() {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp message) {
          auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
          std::snprintf(self->message_.data(), self->message_.size(), "%s", message);
          std::longjmp(self->on_error_, 1);  // NOLINT(cert-err52-cpp)
        },
        [](png_structp, png_const_charp) {});
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) return Error{ErrorCode::kUnavailable, "no memory for it"};
    if (!read_header()) return damaged(message_.data());
    const uint64_t width = png_get_image_width(png_, info_);
    const uint64_t height = png_get_image_height(png_, info_);
    if (std::optional<Error> error = too_many_pixels(width, height)) return *error;
    if (!start()) return damaged(message_.data());
    const size_t row_bytes = png_get_rowbytes(png_, info_);
    const size_t channels = png_get_channels(png_, info_);
    LOCKSTEP_CHECK(row_bytes == width * channels && (channels == 3 || channels == 4), "RGB or RGBA of 8 bits");
    samples_ = {static_cast<int64_t>(width), static_cast<int64_t>(height), static_cast<int64_t>(channels), {}};
    samples_.values.resize(row_bytes * height);
    for (size_t y = 0; y < height; ++y) rows_.push_back(samples_.values.data() + y * row_bytes);
    if (!read_rows()) return damaged(message_.data());
    return std::move(samples_);
  }

 private:
  bool read_header() {
    if (setjmp(on_error_) != 0) return false;  // NOLINT(cert-err52-cpp)
    // Sizes are checked by too_many_pixels.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    // Only the chunks that make the picture are read. For a text or a profile, libpng would allocate the up to 2 GiB
    // that it says it has, before it finds that the file ends.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_read_fn(png_, this, [](png_structp png, png_bytep into, size_t bytes) {
      auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
      if (bytes > self->rest_.size()) png_error(png, "the file is cut off");
      std::memcpy(into, self->rest_.data(), bytes);
      self->rest_.remove_prefix(bytes);
    });
    png_read_info(png_, info_);
    return true;
  }

  bool start() {
    if (setjmp(on_error_) != 0) return false;  // NOLINT(cert-err52-cpp)
    png_set_expand(png_);                      // palettes, fewer than 8 bits, transparent colours
    png_set_scale_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows() {
    if (setjmp(on_error_) != 0) return false;  // NOLINT(cert-err52-cpp)
    png_read_image(png_, rows_.data());
    png_read_end(png_, nullptr);
    return true;
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf on_error_ = {};
  std::array<char, 200> message_ = {};
  std::string_view rest_;  // bytes of the file that were not read yet
  PngSamples samples_;
  std::vector<png_bytep> rows_;
};

Result<Image> decode_png(std::string_view bytes) {
  std::optional<PngSamples> samples = plain_png_samples(bytes);
  if (!samples) {
    TRY_ASSIGN(samples, PngDecoder(bytes).decode());
  }
  if (samples->channels == 4) {
    const int64_t pixels = samples->width * samples->height;
    blend_with_white(samples->values.data(), pixels);
    samples->values.resize(static_cast<size_t>(pixels) * kPixelBytes);
  }
  return Image{.width = samples->width, .height = samples->height, .rgb = std::move(samples->values)};
}

constexpr std::string_view kJpegMagic = "\xFF\xD8\xFF";
constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1A\n";

struct OtherFormat {
  size_t offset;
  std::string_view magic;
  const char* name;
};
constexpr std::array<OtherFormat, 9> kOtherFormats = {{{0, "GIF8", "a GIF"},
                                                       {8, "WEBP", "a WebP"},
                                                       {0, "BM", "a BMP"},
                                                       {0, {"II*\0", 4}, "a TIFF"},
                                                       {0, {"MM\0*", 4}, "a TIFF"},
                                                       {4, "ftypavif", "an AVIF"},
                                                       {4, "ftyphei", "a HEIC"},
                                                       {0, "PK\x03\x04", "a ZIP"},
                                                       {0, "\x1F\x8B", "a gzip"}}};

Error neither(std::string_view bytes) {
  for (const OtherFormat& format : kOtherFormats) {
    if (bytes.size() > format.offset && bytes.substr(format.offset).starts_with(format.magic)) {
      return Error{ErrorCode::kInvalid, std::string("is ") + format.name + " file; JPEG and PNG files are read"};
    }
  }
  const auto first = bytes.substr(0, 256);
  const bool is_text = std::all_of(first.begin(), first.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
  return Error{ErrorCode::kInvalid,
               is_text ? "is a text, no image; JPEG and PNG files are read" : "is neither a JPEG nor a PNG file"};
}

}  // namespace

Result<Image> decode_image(std::string_view bytes, int64_t side) {
  if (bytes.empty()) return Error{ErrorCode::kInvalid, "is empty"};
  if (bytes.starts_with(kJpegMagic)) return JpegDecoder().decode(bytes, side);
  if (bytes.starts_with(kPngMagic)) return decode_png(bytes);
  if (kPngMagic.starts_with(bytes) || kJpegMagic.starts_with(bytes)) return damaged("the file is cut off");
  return neither(bytes);
}

std::string png_bytes(std::span<const uint8_t> rgb, int64_t width, int64_t height) {
  LOCKSTEP_CHECK(width > 0 && height > 0 && rgb.size() == static_cast<size_t>(width * height) * kPixelBytes,
                 "[height, width, 3]");
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = bytes.size();
  const int written = png_image_write_to_memory(&image, bytes.data(), &size, 0, rgb.data(), 0, nullptr);
  LOCKSTEP_CHECK(written != 0, image.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace lockstep
