// How the `recommend` tasks print scores. Threads: pure functions.
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace lockstep {

// The shortest text that reads back as the same float.
inline std::string score_text(float score) {
  std::array<char, 32> text{};  // the longest has 15 characters
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), score).ptr};
}

// The double that JSON prints as score_text(score).
inline double score_number(float score) {
  const std::string text = score_text(score);
  double number = 0.0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace lockstep
