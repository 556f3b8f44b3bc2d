// The class of a code point: letter, number or white space as \p{L}, \p{N} and \s of regular expressions.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class CharacterClass : uint8_t { kLetter, kNumber, kWhiteSpace, kOther };

CharacterClass class_of(char32_t code_point);

struct Character {
  CharacterClass kind = CharacterClass::kOther;
  size_t bytes = 1;
  char32_t code_point = 0xFFFD;
};
// The character of UTF-8 text that begins at `at` < text.size(). A byte that begins no valid character is one of
// kOther.
Character character_at(std::string_view text, size_t at);

}  // namespace lockstep
