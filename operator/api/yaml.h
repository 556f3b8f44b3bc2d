// YAML documents as Json, by YAML 1.2's core schema, as kubectl reads them. Pure.
//
// Role: kubeconfig, TrainJob files, golden cases. Quoted scalars stay strings; `yes` and `012` mean what they mean in
// YAML 1.2; merge keys (<<) are merged; keys that are numbers or booleans become strings, as JSON wants them. Duplicate
// keys, tabs as indentation, unknown tags, numbers that JSON has not (.inf, 2^64), too deep or too large documents
// (aliases counted as often as they are used) are refused with line and column ("trainjob.yaml:3:7: …").
// Errors: kInvalid.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

inline constexpr size_t kYamlNodesMax = 100'000;  // an alias bomb ends here
inline constexpr size_t kYamlDepthMax = 64;
inline constexpr size_t kYamlBytesMax = size_t{8} << 20;  // of the text, and of all scalars with aliases written out

// One document; several, or none, are an error. `what` names the source in the error ("trainjob.yaml").
Result<OrderedJson> parse_yaml(std::string_view text, std::string_view what);
// Any number of documents; empty ones are left out.
Result<std::vector<OrderedJson>> parse_yaml_documents(std::string_view text, std::string_view what);
// Block style, for people: what `parse_yaml` reads back as the same value (invalid UTF-8 replaced by U+FFFD). Strings
// that YAML 1.1 would take for something else ("yes", "012") are quoted.
std::string to_yaml(const OrderedJson& value);

}  // namespace lockstep::api
