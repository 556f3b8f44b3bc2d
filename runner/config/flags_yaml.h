// A flat YAML map of flags, for --config.
// Role: text → (name, value, line); the flag table interprets the names. Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct YamlFlag {
  std::string name;  // as written, dashes turned into underscores
  std::string value;
  int line = 0;  // from 1
};

// Errors (kInvalid), each with `file:line`: not a map, nested values, empty values, duplicate keys, anchors and
// aliases, more than one document, syntax, text too large. Uses yaml-cpp's event interface, which does not expand
// aliases, so a text with nested aliases ("billion laughs") cannot use much memory.
Result<std::vector<YamlFlag>> parse_flags_yaml(std::string_view text, const std::string& file);

}  // namespace lockstep
