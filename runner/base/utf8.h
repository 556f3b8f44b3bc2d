// Text in UTF-8: whether it is valid, its length in characters, and shortening it between two characters. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

struct CodePoint {
  char32_t code = 0xFFFD;
  size_t bytes = 0;  // 0: no valid character begins here
};
// The character that begins at `at` < text.size(). Overlong encodings and UTF-16 surrogates are not valid.
CodePoint code_point_at(std::string_view text, size_t at);

bool is_utf8(std::string_view text);

// Replaces bytes that are not UTF-8 by U+FFFD.
std::string valid_utf8(const std::string& text);

// In code points; so many columns does a terminal need, but for wide and combining characters.
size_t num_characters(std::string_view text);

// The longest beginning of at most `bytes_max` bytes that ends between two characters.
std::string cut_utf8(std::string_view text, size_t bytes_max);

// The same, followed by "…" when something was cut off. The "…" is not counted in `bytes_max`.
std::string shortened(const std::string& text, size_t bytes_max);

}  // namespace lockstep
