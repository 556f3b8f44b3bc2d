#include "runner/data/text/unicode_classes.h"

#include <algorithm>
#include <iterator>
#include <span>

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

constexpr uint32_t kContinuationBits = 6;

// The number of bytes of a character that begins with this byte; 0 if none begins with it.
size_t bytes_from(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// False for overlong encodings and for UTF-16 surrogates, which are not valid UTF-8.
bool is_well_formed(uint32_t code, size_t bytes) {
  if (bytes == 3) return code >= 0x800 && (code < 0xD800 || code > 0xDFFF);
  if (bytes == 4) return code >= 0x10000 && code <= 0x10FFFF;
  return true;
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
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t bytes = bytes_from(lead);
  if (bytes == 0 || bytes > text.size() - at) return {};
  uint32_t code = bytes == 1 ? lead : lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto byte = static_cast<uint8_t>(text[at + i]);
    if ((byte & 0xC0U) != 0x80U) return {};
    code = (code << kContinuationBits) | (byte & 0x3FU);
  }
  if (!is_well_formed(code, bytes)) return {};
  return {.kind = class_of(code), .bytes = bytes, .code_point = code};
}

}  // namespace lockstep
