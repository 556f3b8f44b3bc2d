// Little-endian numbers in files. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// The number in `bytes`, of which there are at most 8.
inline uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = (value << 8U) | static_cast<unsigned char>(bytes[i]);
  return value;
}

// Appends the number in `count` bytes.
inline void put_little_endian(std::string& out, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
}

}  // namespace lockstep
