#include "runner/data/images/inflated_png.h"

#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "runner/data/cache_file.h"

namespace lockstep {
namespace {

constexpr size_t kSignatureBytes = 8;
constexpr size_t kHeaderBytes = 13;
constexpr uint64_t kInflatedBytesMax = uint64_t{64} << 20;  // more is inflated row by row, by zlib
constexpr size_t kBlockBytesMax = 0xFFFF;                   // of a stored block

uint32_t big_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

struct Chunk {
  std::string_view whole;
  std::string_view type;
  std::string_view data;
};

// The chunk that `bytes` begin with. Empty: it is cut off, or its checksum is wrong.
std::optional<Chunk> first_chunk(std::string_view bytes) {
  constexpr size_t kFrameBytes = 12;  // size, type and checksum
  if (bytes.size() < kFrameBytes) return std::nullopt;
  const size_t size = big_endian(bytes);
  if (size > bytes.size() - kFrameBytes) return std::nullopt;
  if (crc32_of(bytes.substr(4, 4 + size)) != big_endian(bytes.substr(8 + size))) return std::nullopt;
  return Chunk{bytes.substr(0, kFrameBytes + size), bytes.substr(4, 4), bytes.substr(8, size)};
}

// 0: unknown, or too large.
size_t inflated_bytes_of(std::string_view header) {
  constexpr std::array<uint64_t, 7> kChannelsOf = {1, 0, 3, 1, 2, 0, 4};  // by colour type
  const uint64_t width = big_endian(header);
  const uint64_t height = big_endian(header.substr(4));
  const uint64_t bits = static_cast<uint8_t>(header[8]);
  const size_t colour_type = static_cast<uint8_t>(header[9]);
  const bool is_interlaced = header[12] != 0;
  if (colour_type >= kChannelsOf.size() || is_interlaced) return 0;
  const uint64_t row = 1 + (width * kChannelsOf.at(colour_type) * bits + 7) / 8;  // a row begins with its filter
  return height > kInflatedBytesMax / row ? 0 : row * height;
}

struct Pixels {
  size_t begin = 0;  // where their first chunk begins in the file, and their last one ends
  size_t end = 0;
  std::string deflated;
  size_t inflated_bytes = 0;
};

std::optional<Pixels> find_pixels(std::string_view file) {
  Pixels pixels;
  size_t at = std::min(kSignatureBytes, file.size());
  for (std::string_view type; type != "IEND";) {
    const std::optional<Chunk> chunk = first_chunk(file.substr(at));
    if (!chunk) return std::nullopt;
    if (chunk->type == "IHDR" && chunk->data.size() == kHeaderBytes) {
      pixels.inflated_bytes = inflated_bytes_of(chunk->data);
    }
    if (chunk->type == "IDAT") {
      if (pixels.end == 0) pixels.begin = pixels.end = at;
      if (pixels.end != at) return std::nullopt;  // something lies between them
      pixels.deflated += chunk->data;
      pixels.end += chunk->whole.size();
    }
    type = chunk->type;
    at += chunk->whole.size();
  }
  if (pixels.inflated_bytes == 0) return std::nullopt;
  return pixels;
}

// Null: they are damaged, or have another size.
std::unique_ptr<char[]> inflate(const Pixels& pixels) {
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  if (decompressor == nullptr) return nullptr;
  auto inflated = std::make_unique_for_overwrite<char[]>(pixels.inflated_bytes);
  const libdeflate_result result =
      libdeflate_zlib_decompress(decompressor.get(), pixels.deflated.data(), pixels.deflated.size(), inflated.get(),
                                 pixels.inflated_bytes, nullptr);
  return result == LIBDEFLATE_SUCCESS ? std::move(inflated) : nullptr;
}

// A chunk with a zlib stream (RFC 1950) of stored blocks (RFC 1951).
void append_stored(std::string_view bytes, std::string& out) {
  const size_t blocks = (bytes.size() + kBlockBytesMax - 1) / kBlockBytesMax;
  out += big_endian(static_cast<uint32_t>(2 + 5 * blocks + bytes.size() + 4)) + "IDAT" + "\x78\x01";
  while (!bytes.empty()) {
    const std::string_view block = bytes.substr(0, kBlockBytesMax);
    bytes.remove_prefix(block.size());
    const bool is_last = bytes.empty();
    const size_t size = block.size();
    out += {static_cast<char>(is_last), static_cast<char>(size), static_cast<char>(size >> 8), static_cast<char>(~size),
            static_cast<char>(~size >> 8)};
    out += block;
  }
  out.append(4 + 4, '\0');  // the checksums of the stream and of the chunk
}

}  // namespace

std::optional<std::string> inflated_png(std::string_view bytes) {
  const std::optional<Pixels> pixels = find_pixels(bytes);
  if (!pixels) return std::nullopt;
  const std::unique_ptr<char[]> inflated = inflate(*pixels);
  if (inflated == nullptr) return std::nullopt;
  std::string out(bytes.substr(0, pixels->begin));
  out.reserve(bytes.size() + pixels->inflated_bytes);
  append_stored({inflated.get(), pixels->inflated_bytes}, out);
  return out += bytes.substr(pixels->end);
}

}  // namespace lockstep
