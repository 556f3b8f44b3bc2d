#include "operator/api/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "operator/api/object_meta.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"
#include "runner/base/utf8.h"

namespace lockstep::api {
namespace {

constexpr std::array kKeywords = {"additionalProperties",
                                  "default",
                                  "description",
                                  "enum",
                                  "format",
                                  "items",
                                  "maxItems",
                                  "maxLength",
                                  "maxProperties",
                                  "maximum",
                                  "minLength",
                                  "minProperties",
                                  "minimum",
                                  "pattern",
                                  "properties",
                                  "required",
                                  "type",
                                  "x-kubernetes-int-or-string",
                                  "x-kubernetes-list-map-keys",
                                  "x-kubernetes-list-type",
                                  "x-kubernetes-map-type",
                                  "x-kubernetes-preserve-unknown-fields",
                                  "x-kubernetes-validations"};
// std::regex recurses with the length of the text and could overflow the stack: a text of more bytes than this counts
// as not matching.
constexpr size_t kMatchedLengthMax = 4096;

Error unusable(const std::string& keyword, const std::string& why) {
  return invalid("the schema's " + keyword + " " + why);
}

std::string text_or_empty(const Json& json, const char* name) { return json.value(name, std::string()); }

std::vector<std::string> texts(const Json& json, const char* name) {
  return json.value(name, std::vector<std::string>());
}

template <typename T>
std::optional<T> number(const Json& json, const char* name) {
  const auto it = json.find(name);
  if (it == json.end()) return std::nullopt;
  return it->get<T>();
}

Result<Schema::Type> type_in(const Json& json) {
  if (json.value("x-kubernetes-int-or-string", false)) return Schema::Type::kIntOrString;
  const std::string type = text_or_empty(json, "type");
  if (type == "object") return Schema::Type::kObject;
  if (type == "array") return Schema::Type::kList;
  if (type == "string") return Schema::Type::kString;
  if (type == "integer") return Schema::Type::kInteger;
  if (type == "boolean") return Schema::Type::kBoolean;
  return unusable("type", "is \"" + type + "\", expected object, array, string, integer or boolean");
}

Result<Schema::ListType> list_type_in(const Json& json) {
  const std::string type = json.value("x-kubernetes-list-type", std::string("atomic"));
  if (type == "atomic") return Schema::ListType::kAtomic;
  if (type == "set") return Schema::ListType::kSet;
  if (type == "map") return Schema::ListType::kMap;
  return unusable("x-kubernetes-list-type", "is \"" + type + "\"");
}

Result<std::unique_ptr<Schema>> child_in(const Json& json, const char* name) {
  const auto it = json.find(name);
  if (it == json.end()) return std::unique_ptr<Schema>();
  auto child = Schema::parse(*it);
  if (!child.ok()) return child.error().with_context(name);
  return std::make_unique<Schema>(*std::move(child));
}

Status read_format(const std::string& format, Schema& schema) {
  if (format == "date-time") {
    schema.is_time = true;
  } else if (format == "int32") {
    if (!schema.minimum) schema.minimum = std::numeric_limits<int32_t>::min();
    if (!schema.maximum) schema.maximum = std::numeric_limits<int32_t>::max();
  } else if (!format.empty() && format != "int64") {
    return unusable("format", "is \"" + format + "\", expected date-time, int32 or int64");
  }
  return {};
}

// Throws Json::exception where a keyword has another type than it must have.
Result<Schema> parse_node(const Json& json) {
  if (!json.is_object()) return unusable("node", "is no object");
  for (const auto& [keyword, value] : json.items()) {
    if (std::find(kKeywords.begin(), kKeywords.end(), keyword) == kKeywords.end()) {
      return unusable("keyword " + keyword, "is not known here");
    }
  }
  Schema schema;
  TRY_ASSIGN(schema.type, type_in(json));
  TRY_ASSIGN(schema.list_type, list_type_in(json));
  TRY_ASSIGN(schema.items, child_in(json, "items"));
  TRY_ASSIGN(schema.additional, child_in(json, "additionalProperties"));
  if (schema.type == Schema::Type::kList && schema.items == nullptr) return unusable("items", "is missing");
  if (const auto it = json.find("properties"); it != json.end()) {
    for (const auto& [name, property] : it->items()) {
      auto child = Schema::parse(property);
      if (!child.ok()) return child.error().with_context(name);
      schema.properties.emplace(name, *std::move(child));
    }
  }
  if (const auto it = json.find("default"); it != json.end()) schema.default_value = *it;
  schema.required = texts(json, "required");
  schema.preserves_unknown = json.value("x-kubernetes-preserve-unknown-fields", false);
  schema.properties_min = number<size_t>(json, "minProperties");
  schema.properties_max = number<size_t>(json, "maxProperties");
  schema.list_keys = texts(json, "x-kubernetes-list-map-keys");
  schema.items_max = number<size_t>(json, "maxItems");
  schema.words = texts(json, "enum");
  schema.length_min = number<size_t>(json, "minLength");
  schema.length_max = number<size_t>(json, "maxLength");
  schema.minimum = number<int64_t>(json, "minimum");
  schema.maximum = number<int64_t>(json, "maximum");
  TRY(read_format(text_or_empty(json, "format"), schema));
  if (const std::string pattern = text_or_empty(json, "pattern"); !pattern.empty()) {
    schema.pattern = Schema::Pattern{pattern, std::regex(pattern)};
  }
  if (const auto it = json.find("x-kubernetes-validations"); it != json.end()) {
    for (const Json& rule : *it) {
      schema.rules.push_back({.rule = rule.at("rule").get<std::string>(),
                              .field_path = text_or_empty(rule, "fieldPath"),
                              .message = rule.at("message").get<std::string>()});
    }
  }
  return schema;
}

// --- checking

std::string as_line(const Json& value) {
  constexpr size_t kShownMax = 80;
  return shortened(dump_line(value), kShownMax);
}

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  return value.is_array() ? "a list" : as_line(value);
}

bool is_whole(const Json& value) { return whole_number(value).has_value(); }

bool has_type(Schema::Type type, const Json& value) {
  switch (type) {
    case Schema::Type::kObject:
      return value.is_object();
    case Schema::Type::kList:
      return value.is_array();
    case Schema::Type::kString:
      return value.is_string();
    case Schema::Type::kInteger:
      return is_whole(value);
    case Schema::Type::kBoolean:
      return value.is_boolean();
    case Schema::Type::kIntOrString:
      return is_whole(value) || value.is_string();
  }
  return false;
}

const char* name_of(Schema::Type type) {
  switch (type) {
    case Schema::Type::kObject:
      return "an object";
    case Schema::Type::kList:
      return "a list";
    case Schema::Type::kString:
      return "a string (in quotes, where it looks like something else)";
    case Schema::Type::kInteger:
      return "a whole number";
    case Schema::Type::kBoolean:
      return "true or false";
    case Schema::Type::kIntOrString:
      return "a whole number or a string";
  }
  return "something else";
}

// "has 1 entry", "has 65 entries".
std::string has(size_t count, const char* one, const char* many) {
  return std::string("has ").append(std::to_string(count)).append(" ").append(count == 1 ? one : many);
}

bool matches(const std::string& text, const Schema::Pattern& pattern) {
  return text.size() <= kMatchedLengthMax && std::regex_search(text, pattern.compiled);
}

class StructureCheck {
 public:
  explicit StructureCheck(std::vector<Problem>& problems) : problems_(problems) {}

  void check(const Schema& schema, const Json& value, const std::string& path) {
    if (!has_type(schema.type, value)) {
      return add(path, "is " + shown(value) + ", expected " + name_of(schema.type));
    }
    if (value.is_object()) check_object(schema, value, path);
    if (value.is_array()) check_list(schema, value, path);
    if (value.is_string()) check_string(schema, value, path);
    if (value.is_number()) check_number(schema, value, path);
  }

 private:
  void add(const std::string& path, std::string message) { problems_.push_back({path, std::move(message)}); }

  void check_object(const Schema& schema, const Json& value, const std::string& path) {
    for (const std::string& name : schema.required) {
      if (!value.contains(name)) add(field_below(path, name), "is missing, and has no default");
    }
    if (value.size() < schema.properties_min.value_or(0)) {
      add(path, has(value.size(), "field", "fields") + ", expected at least " + std::to_string(*schema.properties_min));
    }
    if (schema.properties_max && value.size() > *schema.properties_max) {
      add(path, has(value.size(), "field", "fields") + ", expected at most " + std::to_string(*schema.properties_max));
    }
    for (const auto& [name, member] : value.items()) {
      if (const auto it = schema.properties.find(name); it != schema.properties.end()) {
        check(it->second, member, field_below(path, name));
      } else if (schema.additional != nullptr) {
        check(*schema.additional, member, field_below(path, name));
      } else if (!schema.preserves_unknown) {
        add_unknown(schema, name, path);
      }
    }
  }

  void add_unknown(const Schema& schema, const std::string& name, const std::string& path) {
    std::vector<std::string> known;
    for (const auto& [property, unused] : schema.properties) known.push_back(property);
    std::string message = "is not a field of ";
    message.append(path.empty() ? "a TrainJob" : path).append(did_you_mean(name, known));
    add(field_below(path, name), std::move(message));
  }

  void check_list(const Schema& schema, const Json& value, const std::string& path) {
    if (schema.items_max && value.size() > *schema.items_max) {
      // The entries of a list that is too long are not looked at: there may be very many.
      return add(path,
                 has(value.size(), "entry", "entries") + ", expected at most " + std::to_string(*schema.items_max));
    }
    std::set<Json> seen;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string at = field_below(path, i);
      check(*schema.items, value[i], at);
      if (schema.list_type == Schema::ListType::kAtomic) continue;
      const Json key = key_of(schema, value[i]);
      if (!seen.insert(key).second) add(at, "is there twice: " + as_line(key) + "; remove one of the two");
    }
  }

  // Two entries with equal keys are duplicates: of a set the whole entry, of a map its `list_keys`.
  static Json key_of(const Schema& schema, const Json& entry) {
    if (schema.list_type == Schema::ListType::kSet || !entry.is_object()) return entry;
    Json key = Json::object();
    for (const std::string& name : schema.list_keys) {
      if (entry.contains(name)) key[name] = entry[name];
    }
    return key;
  }

  void check_string(const Schema& schema, const Json& value, const std::string& path) {
    const auto& text = value.get_ref<const std::string&>();
    if (!schema.words.empty() && std::find(schema.words.begin(), schema.words.end(), text) == schema.words.end()) {
      return add(path,
                 "is " + shown(value) + ", expected one of " + joined(schema.words) + did_you_mean(text, schema.words));
    }
    const size_t length = num_characters(text);
    if (length < schema.length_min.value_or(0)) {
      return add(path,
                 has(length, "character", "characters") + ", expected at least " + std::to_string(*schema.length_min));
    }
    if (schema.length_max && length > *schema.length_max) {
      return add(path,
                 has(length, "character", "characters") + ", expected at most " + std::to_string(*schema.length_max));
    }
    if (schema.is_time && !parse_time(text)) {
      return add(path, "is " + shown(value) + ", expected a time such as 2026-11-21T10:00:00Z");
    }
    if (schema.pattern && !matches(text, *schema.pattern)) {
      add(path, "is " + shown(value) + ", expected text that matches " + schema.pattern->text);
    }
  }

  void check_number(const Schema& schema, const Json& value, const std::string& path) {
    const int64_t number = whole_number(value).value_or(0);  // check() has found it to be one
    if (schema.minimum && number < *schema.minimum) {
      add(path, "is " + shown(value) + ", expected at least " + std::to_string(*schema.minimum));
    }
    if (schema.maximum && number > *schema.maximum) {
      add(path, "is " + shown(value) + ", expected at most " + std::to_string(*schema.maximum));
    }
  }

  std::vector<Problem>& problems_;
};

}  // namespace

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    constexpr double kExact = 9'007'199'254'740'992.0;  // 2^53
    const auto number = value.get<double>();
    if (std::abs(number) <= kExact && std::trunc(number) == number) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

Result<Schema> Schema::parse(const Json& json) {
  try {
    return parse_node(json);
  } catch (const Json::exception& e) {
    return invalid("a keyword of the schema has another type than it must have", e.what());
  } catch (const std::regex_error& e) {
    return invalid("a pattern of the schema is no regular expression", e.what());
  }
}

void apply_defaults(const Schema& schema, Json& value) {
  if (value.is_array() && schema.items != nullptr) {
    for (Json& entry : value) apply_defaults(*schema.items, entry);
  }
  if (!value.is_object()) return;
  for (auto it = value.begin(); it != value.end();) {
    const bool is_known = schema.properties.count(it.key()) > 0 || schema.additional != nullptr;
    it = is_known && it->is_null() ? value.erase(it) : std::next(it);
  }
  for (const auto& [name, property] : schema.properties) {
    if (property.default_value && !value.contains(name)) value[name] = *property.default_value;
    if (const auto it = value.find(name); it != value.end()) apply_defaults(property, *it);
  }
  if (schema.additional == nullptr) return;
  for (auto& [name, member] : value.items()) {
    if (schema.properties.count(name) == 0) apply_defaults(*schema.additional, member);
  }
}

std::vector<Problem> check_structure(const Schema& schema, const Json& value, const std::string& path) {
  std::vector<Problem> problems;
  StructureCheck(problems).check(schema, value, path);
  return problems;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

std::string field_below(const std::string& path, const std::string& name) {
  if (path.empty()) return name;
  std::string below = path;
  return below.append(".").append(name);
}

std::string field_below(const std::string& path, size_t index) {
  std::string below = path;
  return below.append("[").append(std::to_string(index)).append("]");
}

}  // namespace lockstep::api
