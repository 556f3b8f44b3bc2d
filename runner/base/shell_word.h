// Quoting for command lines that are printed for a user to paste into a shell. Pure.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The word, quoted for a POSIX shell if it needs quoting.
inline std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace lockstep
