// YAML documents as Json, by YAML 1.2's core schema, as kubectl reads them. Pure.
//
// Role: kubeconfig, TrainJob files, golden cases. Quoted scalars stay strings; `yes` and `012` mean what they mean in
// YAML 1.2; merge keys (<<) are merged; keys that are numbers or booleans become strings, as JSON wants them. Duplicate
// keys, tabs as indentation, unknown tags, numbers that JSON has not (.inf, 2^64), too deep or too large documents
// (aliases counted as often as they are used) are refused with line and column ("trainjob.yaml:3:7: …").
// Errors: kInvalid.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

inline constexpr size_t kYamlNodesMax = 100'000;  // aliases written out, against alias bombs ("billion laughs")
inline constexpr size_t kYamlDepthMax = 64;
inline constexpr size_t kYamlBytesMax = size_t{8} << 20;  // of the text, and of all scalars with aliases written out

// One document; several, or none, are an error. `what` names the source in the error ("trainjob.yaml").
Result<OrderedJson> parse_yaml(std::string_view text, std::string_view what);
// Any number of documents; empty ones are left out.
Result<std::vector<OrderedJson>> parse_yaml_documents(std::string_view text, std::string_view what);

// Where something stands in a text. Both count from 1, the column in bytes.
struct YamlPosition {
  int line = 1;
  int column = 1;
  bool operator==(const YamlPosition&) const = default;
};

struct YamlDocument {
  OrderedJson value;
  YamlPosition begin;
  // The position of every field, by its path as schema.h's field_below writes it ("spec.trainer.env[0].name"): that of
  // its key, or of the value itself in a list. A field that came through an alias or a merge key has the position of
  // that.
  std::map<std::string, YamlPosition> positions;

  // The position of the field, or of its nearest parent if the text does not contain the field.
  [[nodiscard]] YamlPosition position_of(std::string_view field) const;
};

// Files of Kubernetes objects, with positions, and read as kubectl reads them, by YAML 1.1: a plain `yes`, `on` or `y`
// is true, also as a key. Refused are numbers that YAML 1.1 reads differently (012, 1_000, 0b1), and keys that are
// given twice, of which kubectl would silently use the last. JSON may be indented with tabs. Empty documents are left
// out.
Result<std::vector<YamlDocument>> parse_manifests(std::string_view text, std::string_view what);

// Readable text in block style, which `parse_yaml` reads back as the same value (invalid UTF-8 is replaced by U+FFFD).
// Strings that YAML 1.1 would read as another type ("yes", "012") are quoted.
std::string to_yaml(const OrderedJson& value);

}  // namespace lockstep::api
