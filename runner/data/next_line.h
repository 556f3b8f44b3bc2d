// The lines of a text, one after the other. Threads: pure functions.
#pragma once

#include <algorithm>
#include <string_view>

namespace lockstep {

// Takes the first line off `text`, and returns it without its "\n" or "\r\n". The last line may have no "\n".
inline std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace lockstep
