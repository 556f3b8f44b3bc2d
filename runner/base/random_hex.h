// Random hex digits, for tokens and for names that no other process uses. Threads: any.
#pragma once

#include <cstddef>
#include <random>
#include <string>

namespace lockstep {

inline std::string random_hex(size_t digits) {
  std::random_device device;
  std::string text;
  while (text.size() < digits) text += "0123456789abcdef"[device() & 15U];
  return text;
}

}  // namespace lockstep
