// A text without the white space around it. Threads: pure.
#pragma once

#include <string_view>

namespace lockstep {

inline constexpr std::string_view kBlankCharacters = " \t\r\n\v\f";

inline std::string_view trimmed(std::string_view text, std::string_view blanks = kBlankCharacters) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

}  // namespace lockstep
