// Compares a secret with what somebody sent, in a time that says nothing of where they differ. Pure.
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
