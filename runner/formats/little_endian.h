// Little-endian numbers in files. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The number in `bytes`, of which there are at most 8.
inline uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = (value << 8U) | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace lockstep
