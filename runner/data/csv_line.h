// The fields of a line of a CSV file (RFC 4180, but a field may not hold a line break). Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Takes the first field and the comma after it off `rest`, and returns it without the quotes around it; doubled quotes
// inside stay doubled. `more`: a comma followed, so that there is another field, which may be empty.
inline std::string_view next_csv_field(std::string_view& rest, bool& more) {
  size_t end = 0;
  std::string_view field;
  if (rest.starts_with('"')) {
    size_t close = rest.find('"', 1);
    while (close != std::string_view::npos && close + 1 < rest.size() && rest[close + 1] == '"') {
      close = rest.find('"', close + 2);
    }
    if (close != std::string_view::npos && (close + 1 == rest.size() || rest[close + 1] == ',')) {
      field = rest.substr(1, close - 1);
      end = close + 1;
    }
  }
  if (end == 0) {
    end = rest.find(',');
    field = rest.substr(0, end);
  }
  more = end < rest.size();
  rest.remove_prefix(more ? end + 1 : rest.size());
  return field;
}

// A field with its doubled quotes made single.
inline std::string csv_text(std::string_view field) {
  std::string text;
  for (size_t at = 0; at < field.size(); ++at) {
    text += field[at];
    if (field[at] == '"' && at + 1 < field.size() && field[at + 1] == '"') ++at;
  }
  return text;
}

}  // namespace lockstep
