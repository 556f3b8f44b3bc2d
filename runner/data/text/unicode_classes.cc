#include "runner/data/text/unicode_classes.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "runner/base/utf8.h"

namespace lockstep {
namespace {

struct CodeRange {
  uint32_t first;
  uint32_t last;
};

#include "unicode_classes.inc"  // made by make_unicode_classes.py

// The property White_Space.
constexpr CodeRange kWhiteSpaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                      {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                      {0x205F, 0x205F}, {0x3000, 0x3000}};

bool is_in(std::span<const CodeRange> ranges, uint32_t code) {
  const auto behind = std::upper_bound(ranges.begin(), ranges.end(), code,
                                       [](uint32_t value, const CodeRange& range) { return value < range.first; });
  return behind != ranges.begin() && code <= std::prev(behind)->last;
}

}  // namespace

CharacterClass class_of(char32_t code_point) {
  const auto code = static_cast<uint32_t>(code_point);
  if (is_in(kLetters, code)) return CharacterClass::kLetter;
  if (is_in(kNumbers, code)) return CharacterClass::kNumber;
  if (is_in(kWhiteSpaces, code)) return CharacterClass::kWhiteSpace;
  return CharacterClass::kOther;
}

Character character_at(std::string_view text, size_t at) {
  const CodePoint found = code_point_at(text, at);
  if (found.bytes == 0) return {};
  return {.kind = class_of(found.code), .bytes = found.bytes, .code_point = found.code};
}

}  // namespace lockstep
