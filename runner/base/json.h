// nlohmann/json with this project's two rules: output never throws on invalid UTF-8 (bytes from outside reach log
// lines and messages), and parsing reports an Error instead of throwing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runner/base/result.h"

namespace lockstep {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of insertion: for files that people read

// One line, no spaces; invalid UTF-8 replaced by U+FFFD.
std::string dump_line(const Json& value);
std::string dump_line(const OrderedJson& value);
// Indented by two, with a final newline.
std::string dump_pretty(const OrderedJson& value);

// `what` names the source in the error ("state.json", "message from agent").
Result<Json> parse_json(std::string_view text, std::string_view what);

}  // namespace lockstep
