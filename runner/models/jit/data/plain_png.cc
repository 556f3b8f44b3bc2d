#include "runner/models/jit/data/plain_png.h"

#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "runner/base/vector_loops.h"
#include "runner/data/cache_file.h"
#include "runner/models/jit/data/pixel_vectors.h"

namespace lockstep {
namespace {

constexpr size_t kSignatureBytes = 8;
constexpr size_t kBytesAfter = 3;                           // see add_predicted
constexpr size_t kBytesBefore = kVectorLanes;               // so that no vector of samples overwrites filtered ones
constexpr uint64_t kInflatedBytesMax = uint64_t{64} << 20;  // more is inflated row by row, by zlib

uint32_t big_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

struct Chunk {
  std::string_view type;
  std::string_view data;
};

// Removes the chunk that `bytes` begin with. Empty: it is cut off, or its checksum is wrong.
std::optional<Chunk> read_chunk(std::string_view& bytes) {
  constexpr size_t kFrameBytes = 12;  // size, type and checksum
  if (bytes.size() < kFrameBytes) return std::nullopt;
  const size_t size = big_endian(bytes);
  if (size > bytes.size() - kFrameBytes) return std::nullopt;
  if (crc32_of(bytes.substr(4, 4 + size)) != big_endian(bytes.substr(8 + size))) return std::nullopt;
  const Chunk chunk{bytes.substr(4, 4), bytes.substr(8, size)};
  bytes.remove_prefix(kFrameBytes + size);
  return chunk;
}

using Rgba = std::array<uint8_t, 4>;

struct PlainPng {
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;       // in the file, of 8 bits
  bool is_indexed = false;    // with a palette
  std::vector<Rgba> colours;  // 256, of the first channel, if that is grey or an index; none: the channels are colours
  std::string deflated;

  [[nodiscard]] int64_t row_bytes() const { return width * channels; }
  [[nodiscard]] size_t inflated_bytes() const { return static_cast<size_t>(height * (1 + row_bytes())); }
};

bool read_header(std::string_view header, PlainPng& png) {
  constexpr std::array<int64_t, 7> kChannelsOf = {1, 0, 3, 1, 2, 0, 4};  // by colour type
  constexpr std::string_view kNotInterlaced("\0\0\0", 3);                // and the only compression and filters
  if (header.size() != 13 || header[8] != 8 || header.substr(10) != kNotInterlaced) return false;
  const size_t colour_type = static_cast<uint8_t>(header[9]);
  if (colour_type >= kChannelsOf.size() || kChannelsOf.at(colour_type) == 0) return false;
  png.width = big_endian(header);
  png.height = big_endian(header.substr(4));
  png.channels = kChannelsOf.at(colour_type);
  png.is_indexed = colour_type == 3;
  const bool is_grey = png.channels <= 2 && !png.is_indexed;
  for (size_t grey = 0; is_grey && grey < 256; ++grey) {
    const auto value = static_cast<uint8_t>(grey);
    png.colours.push_back({value, value, value, 255});
  }
  if (png.width == 0 || png.height == 0) return false;
  return static_cast<uint64_t>(png.height) <= kInflatedBytesMax / static_cast<uint64_t>(1 + png.row_bytes());
}

// An index beyond the palette is black, as libpng has it.
bool read_palette(std::string_view data, PlainPng& png) {
  if (!png.is_indexed || !png.colours.empty() || data.size() % 3 != 0 || data.size() > 3 * 256) return false;
  png.colours.resize(256, {0, 0, 0, 255});
  for (size_t i = 0; i < data.size(); ++i) png.colours[i / 3].at(i % 3) = static_cast<uint8_t>(data[i]);
  return true;
}

bool read_transparency(std::string_view data, PlainPng& png) {
  if (!png.is_indexed || data.size() > png.colours.size()) return false;
  for (size_t i = 0; i < data.size(); ++i) png.colours[i][3] = static_cast<uint8_t>(data[i]);
  return true;
}

std::optional<PlainPng> read_chunks(std::string_view file) {
  PlainPng png;
  file.remove_prefix(std::min(kSignatureBytes, file.size()));
  std::optional<Chunk> chunk = read_chunk(file);
  if (!chunk || chunk->type != "IHDR" || !read_header(chunk->data, png)) return std::nullopt;
  png.deflated.reserve(file.size());
  bool is_after_pixels = false;
  while ((chunk = read_chunk(file)) && chunk->type != "IEND") {
    const bool is_before_pixels = png.deflated.empty();
    const std::string_view type = chunk->type;
    if (type == "IDAT" && !is_after_pixels) {
      png.deflated += chunk->data;
    } else if (type == "PLTE" || type == "tRNS") {
      const bool is_read = type == "PLTE" ? read_palette(chunk->data, png) : read_transparency(chunk->data, png);
      if (!is_read || !is_before_pixels) return std::nullopt;
    } else if (type[0] >= 'a' && type[0] <= 'z') {  // does not change the samples
      is_after_pixels = !is_before_pixels;
    } else {
      return std::nullopt;
    }
  }
  if (!chunk || (png.is_indexed && png.colours.empty())) return std::nullopt;
  return png;
}

// Writes png.inflated_bytes(). False: they are damaged, or have another size.
bool inflate(const PlainPng& png, uint8_t* inflated) {
  inflate_state state;
  isal_inflate_init(&state);
  state.crc_flag = ISAL_ZLIB;
  // isal_inflate_stateless does not write to it.
  state.next_in = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(png.deflated.data()));
  state.avail_in = static_cast<uint32_t>(png.deflated.size());
  state.next_out = inflated;
  state.avail_out = static_cast<uint32_t>(png.inflated_bytes());
  return isal_inflate_stateless(&state) == ISAL_DECOMP_OK && state.avail_out == 0;
}

struct Row {
  const uint8_t* filtered;
  const uint8_t* above;  // the samples of the row above; of the first row, zeros
  uint8_t* samples;
  int64_t pixels;
  int64_t channels;
};

// Adds predicted(left, above, above_left) to each pixel. Four bytes are read and written for each, however many
// channels it has: kBytesAfter must follow all three rows. The samples may lie in the same memory as what is filtered,
// if they begin at least kBytesBefore earlier.
template <typename Predict>
[[gnu::always_inline]] inline void add_predicted(Row row, const Predict& predicted) {
  FourSums left = {};
  FourSums above_left = {};
  for (int64_t x = 0; x < row.pixels; ++x) {
    const FourSums above = widened(row.above);
    left = (widened(row.filtered) + predicted(left, above, above_left)) & 255;
    above_left = above;
    store_narrowed(left, row.samples);
    row.filtered += row.channels;
    row.above += row.channels;
    row.samples += row.channels;
  }
}

[[gnu::always_inline]] inline FourSums left_one(FourSums left, FourSums, FourSums) { return left; }
[[gnu::always_inline]] inline FourSums average(FourSums left, FourSums above, FourSums) { return (left + above) >> 1; }
[[gnu::always_inline]] inline FourSums magnitude(FourSums x) { return x < 0 ? -x : x; }

// Of the three, the one that is nearest to left + above - above_left.
[[gnu::always_inline]] inline FourSums paeth(FourSums left, FourSums above, FourSums above_left) {
  const FourSums to_left = magnitude(above - above_left);
  const FourSums to_above = magnitude(left - above_left);
  const FourSums to_above_left = magnitude(left + above - 2 * above_left);
  const FourSums nearer = to_above <= to_above_left ? above : above_left;
  const auto is_left = (to_left <= to_above) & (to_left <= to_above_left);
  return is_left ? left : nearer;
}

// Undoes one of the filters of the PNG specification, section 9. False: there is no such filter.
LOCKSTEP_VECTOR_CLONES
bool unfilter(int filter, Row row) {
  const int64_t bytes = row.pixels * row.channels;
  switch (filter) {
    case 0:
      std::copy_n(row.filtered, bytes, row.samples);
      return true;
    case 1:
      add_predicted(row, left_one);
      return true;
    case 2:
      for_each_value(
          bytes, LOCKSTEP_EACH(i) { row.samples[i] = static_cast<uint8_t>(row.filtered[i] + row.above[i]); });
      return true;
    case 3:
      add_predicted(row, average);
      return true;
    case 4:
      add_predicted(row, paeth);
      return true;
    default:
      return false;
  }
}

// Grey or indices, with or without alpha → RGBA.
std::vector<uint8_t> coloured(const PlainPng& png, const std::vector<uint8_t>& values) {
  std::vector<uint8_t> rgba(static_cast<size_t>(png.width * png.height) * 4);
  const auto channels = static_cast<size_t>(png.channels);
  for (size_t i = 0; i < rgba.size() / 4; ++i) {
    Rgba colour = png.colours[values[i * channels]];
    if (channels == 2) colour[3] = values[2 * i + 1];
    std::copy(colour.begin(), colour.end(), rgba.data() + 4 * i);
  }
  return rgba;
}

}  // namespace

std::optional<PngSamples> plain_png_samples(std::string_view file) {
  const std::optional<PlainPng> png = read_chunks(file);
  if (!png) return std::nullopt;
  const int64_t row_bytes = png->row_bytes();
  std::vector<uint8_t> values(kBytesBefore + png->inflated_bytes() + kBytesAfter);
  uint8_t* inflated = values.data() + kBytesBefore;
  if (!inflate(*png, inflated)) return std::nullopt;
  const std::vector<uint8_t> zeros(static_cast<size_t>(row_bytes) + kBytesAfter);
  Row row = {inflated, zeros.data(), values.data(), png->width, png->channels};
  for (int64_t y = 0; y < png->height; ++y) {
    const int filter = *row.filtered++;
    if (!unfilter(filter, row)) return std::nullopt;
    row.above = row.samples;
    row.filtered += row_bytes;
    row.samples += row_bytes;
  }
  values.resize(static_cast<size_t>(png->height * row_bytes));
  if (png->channels > 2) return PngSamples{png->width, png->height, png->channels, std::move(values)};
  return PngSamples{png->width, png->height, 4, coloured(*png, values)};
}

}  // namespace lockstep
