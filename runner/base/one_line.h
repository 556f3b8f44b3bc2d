// Makes text from outside safe for one line of a log, a message or a terminal: it can neither begin a new line nor move
// the cursor. Pure.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Replaces control characters: newline, carriage return and tab by a space, others by '?'. Leaves other UTF-8
// unchanged.
inline std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next <= 0x9F;  // U+0080 … U+009F, two bytes: CSI is among them
    if (byte == '\n' || byte == '\r' || byte == '\t') {
      line += ' ';
    } else if (byte < 0x20 || byte == 0x7F || is_c1) {
      line += '?';
    } else {
      line += text[i];
    }
    if (is_c1) ++i;
  }
  return line;
}

// At most 80 bytes of a file, for messages: bytes that are not printable ASCII as \xNN (files often contain Latin-1).
inline std::string printable(std::string_view text) {
  constexpr size_t kBytesMax = 80;
  constexpr const char* kHex = "0123456789abcdef";
  std::string shown;
  for (const char c : text) {
    if (shown.size() >= kBytesMax) return shown.substr(0, kBytesMax - 3) + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\t') {
      shown += "\\t";
    } else if (byte < 0x20 || byte >= 0x7F) {
      shown += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      shown += c;
    }
  }
  return shown;
}

}  // namespace lockstep
