// Schema: a structural OpenAPI v3 schema, as CustomResourceDefinitions carry it. Pure.
//
// Role: does without a cluster what an API server does with an object before it stores it: unknown fields (as with
// fieldValidation=Strict), nulls, defaults, types and limits. It knows the keywords that manifests/base/crd.yaml uses
// and refuses a schema with any other, so that no rule is silently skipped. CEL rules are kept as text and run by
// trainjob_rules.h. Threads: immutable once parsed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

// What is wrong with one field of an object.
struct Problem {
  std::string field;    // as the API server writes it: "spec.trainer.env[0].name"
  std::string message;  // what was found, what was expected, what to do
  bool operator==(const Problem&) const = default;
};

// One entry of x-kubernetes-validations.
struct CelRule {
  std::string rule;
  std::string field_path;  // ".trainer.numNodes", from the field that has the rule; empty: that one
  std::string message;
  // Such rules are run for updates only, and by the API server only.
  [[nodiscard]] bool compares_with_stored() const { return rule.find("oldSelf") != std::string::npos; }
};

struct Schema {
  enum class Type { kObject, kList, kString, kInteger, kBoolean, kIntOrString };
  enum class ListType { kAtomic, kSet, kMap };
  struct Pattern {
    std::string text;
    std::regex compiled;
  };

  static Result<Schema> parse(const Json& json);

  Type type = Type::kObject;
  std::optional<Json> default_value;
  std::vector<CelRule> rules;

  // objects
  std::map<std::string, Schema> properties;
  std::unique_ptr<Schema> additional;  // of the values of a map; nullptr: only `properties`
  std::vector<std::string> required;
  bool preserves_unknown = false;
  std::optional<size_t> properties_min;
  std::optional<size_t> properties_max;

  // lists
  std::unique_ptr<Schema> items;
  ListType list_type = ListType::kAtomic;
  std::vector<std::string> list_keys;  // of ListType::kMap
  std::optional<size_t> items_max;

  // strings; lengths in characters
  std::vector<std::string> words;  // enum
  bool is_time = false;            // RFC 3339
  std::optional<size_t> length_min;
  std::optional<size_t> length_max;
  std::optional<Pattern> pattern;

  // integers; format int32 is a minimum and a maximum, unless there are narrower ones
  std::optional<int64_t> minimum;
  std::optional<int64_t> maximum;
};

// Drops nulls that stand for an absent field, then sets what has a default, as the API server does.
void apply_defaults(const Schema& schema, Json& value);

// Checks for unknown fields, wrong types and exceeded limits. The problems are in the order of the fields' names. Call
// apply_defaults on `value` first.
std::vector<Problem> check_structure(const Schema& schema, const Json& value, const std::string& path);

// The value as a 64-bit integer; nullopt: it is no whole number, or too large. 2.0 counts as 2, as in the API server.
std::optional<int64_t> whole_number(const Json& value);

// "; did you mean image?", the known name that is nearest to `name`; "" when none is near.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known);

// "spec.trainer" and "image" → "spec.trainer.image".
std::string field_below(const std::string& path, const std::string& name);
std::string field_below(const std::string& path, size_t index);

}  // namespace lockstep::api
