// A flat YAML map of flags, for --config.
// Role: text → (name, value, line); what the names mean is the flag table's business. Threads: pure.
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
// aliases, more than one document, syntax, text too large. Reads events, builds no tree: an alias bomb stays text.
Result<std::vector<YamlFlag>> parse_flags_yaml(std::string_view text, const std::string& file);

}  // namespace lockstep
