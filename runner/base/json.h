// nlohmann/json with this project's rules: output never throws on invalid UTF-8 (bytes from outside reach log lines and
// messages), parsing reports an Error instead of throwing, and fields of objects are read by their path.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
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

// Documents are copied, compared and written by recursion: a deeper one could end the stack. Kubernetes' own objects
// have about 20 levels.
inline constexpr size_t kJsonDepthMax = 128;

// `what` names the source in the error ("state.json", "message from agent"). kCorrupt for what is no JSON or is nested
// deeper than kJsonDepthMax. A text from outside may make a document of 30 times its size: json_text.h tells before.
Result<Json> parse_json(std::string_view text, std::string_view what);

// Fields of an object whose form somebody else has checked, such as a Kubernetes object of the API server: one that is
// missing or of another type reads as empty. A caller that must tell these two apart must not use them.
//
// nullptr when a step of the path is missing or is no object.
const Json* field(const Json& object, std::initializer_list<std::string_view> path);
std::string text_field(const Json& object, std::initializer_list<std::string_view> path);
// nullopt, too, where the number is above int64_t's.
std::optional<int64_t> number_field(const Json& object, std::initializer_list<std::string_view> path);
bool bool_field(const Json& object, std::initializer_list<std::string_view> path);
// An empty list when there is none.
const Json& list_field(const Json& object, std::initializer_list<std::string_view> path);

// A whole decimal number and nothing else.
std::optional<int64_t> parse_number(std::string_view text);

}  // namespace lockstep
