// Compares a secret with what a client sent, in constant time for equal lengths, so that the time does not show where
// they differ. Pure.
#pragma once

#include <string_view>

namespace lockstep {

inline bool same_secret(std::string_view secret, std::string_view sent) {
  if (secret.size() != sent.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < secret.size(); ++i) difference |= static_cast<unsigned char>(secret[i] ^ sent[i]);
  return difference == 0;
}

}  // namespace lockstep
