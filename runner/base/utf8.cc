#include "runner/base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runner/base/json.h"

namespace lockstep {
namespace {

constexpr uint32_t kContinuationBits = 6;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

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

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t bytes = bytes_from(lead);
  if (bytes == 0 || bytes > text.size() - at) return {};
  uint32_t code = bytes == 1 ? lead : lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(text[at + i])) return {};
    code = (code << kContinuationBits) | (static_cast<uint8_t>(text[at + i]) & 0x3FU);
  }
  if (!is_well_formed(code, bytes)) return {};
  return {.code = code, .bytes = bytes};
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    // Eight bytes of ASCII at once: most of a large file is ASCII.
    uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const size_t bytes = code_point_at(text, at).bytes;
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

std::string valid_utf8(const std::string& text) {
  return is_utf8(text) ? text : Json::parse(dump_line(Json(text))).get<std::string>();
}

size_t num_characters(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), is_continuation));
}

std::string cut_utf8(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  while (bytes_max > 0 && is_continuation(text[bytes_max])) --bytes_max;
  return std::string(text.substr(0, bytes_max));
}

std::string shortened(const std::string& text, size_t bytes_max) {
  return text.size() <= bytes_max ? text : cut_utf8(text, bytes_max) + "…";
}

}  // namespace lockstep
