// Makes text from outside safe for one line of a log or a terminal: it can neither begin a new line nor move the
// cursor. Pure.
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

}  // namespace lockstep
