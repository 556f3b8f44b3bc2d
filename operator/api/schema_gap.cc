#include "operator/api/schema_gap.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lockstep::api {
namespace {

// A limit that the older schema has, and the newer one has not or has further out. `sign`: 1 for a maximum, -1 for a
// minimum.
template <typename Number>
void compare_limit(const std::optional<Number>& ours, const Json& theirs, const char* keyword, int sign,
                   const std::string& path, std::vector<std::string>& lacking) {
  const std::optional<int64_t> limit = number_field(theirs, {keyword});
  if (!limit) return;
  if (!ours) {
    lacking.push_back(path + ": values beyond its " + keyword + " of " + std::to_string(*limit));
  } else if (sign * static_cast<int64_t>(*ours) > sign * *limit) {
    lacking.push_back(path + ": a " + keyword + " of " + std::to_string(*ours));
  }
}

void compare_limits(const Schema& ours, const Json& theirs, const std::string& path,
                    std::vector<std::string>& lacking) {
  compare_limit(ours.maximum, theirs, "maximum", 1, path, lacking);
  compare_limit(ours.minimum, theirs, "minimum", -1, path, lacking);
  compare_limit(ours.length_max, theirs, "maxLength", 1, path, lacking);
  compare_limit(ours.length_min, theirs, "minLength", -1, path, lacking);
  compare_limit(ours.items_max, theirs, "maxItems", 1, path, lacking);
  compare_limit(ours.properties_max, theirs, "maxProperties", 1, path, lacking);
  compare_limit(ours.properties_min, theirs, "minProperties", -1, path, lacking);
}

void compare_words(const Schema& ours, const Json& theirs, const std::string& path, std::vector<std::string>& lacking) {
  const Json& words = list_field(theirs, {"enum"});
  if (words.empty()) return;
  if (ours.words.empty()) lacking.push_back(path + ": other words than its own");
  for (const std::string& word : ours.words) {
    if (std::find(words.begin(), words.end(), word) == words.end()) lacking.push_back(path + ": " + word);
  }
}

void collect(const Schema& ours, const Json& theirs, const std::string& path, std::vector<std::string>& lacking) {
  compare_words(ours, theirs, path, lacking);
  compare_limits(ours, theirs, path, lacking);
  if (bool_field(theirs, {"x-kubernetes-preserve-unknown-fields"})) return;
  for (const auto& [name, schema] : ours.properties) {
    if (path.empty() && name == "metadata") continue;  // defined by Kubernetes for every kind
    const std::string field_path = field_below(path, name);
    if (const Json* const found = field(theirs, {"properties", name})) {
      collect(schema, *found, field_path, lacking);
    } else {
      lacking.push_back(field_path);
    }
  }
  if (const Json* const items = field(theirs, {"items"}); items != nullptr && ours.items) {
    collect(*ours.items, *items, path + "[]", lacking);
  }
  if (const Json* const values = field(theirs, {"additionalProperties"}); values != nullptr && ours.additional) {
    collect(*ours.additional, *values, path + "{}", lacking);
  }
}

bool is_kind(const Json& schema, std::string_view group, std::string_view kind) {
  const Json& kinds = list_field(schema, {"x-kubernetes-group-version-kind"});
  return std::any_of(kinds.begin(), kinds.end(), [&](const Json& one) {
    return text_field(one, {"group"}) == group && text_field(one, {"kind"}) == kind;
  });
}

}  // namespace

std::vector<std::string> schema_gaps(const Schema& ours, const Json& theirs) {
  std::vector<std::string> lacking;
  collect(ours, theirs, "", lacking);
  return lacking;
}

const Json* schema_of_kind(const Json& openapi, std::string_view group, std::string_view kind) {
  const Json* const schemas = field(openapi, {"components", "schemas"});
  if (schemas == nullptr || !schemas->is_object()) return nullptr;
  for (const Json& schema : *schemas) {
    if (is_kind(schema, group, kind)) return &schema;
  }
  return nullptr;
}

}  // namespace lockstep::api
