#include "operator/api/schema_gap.h"

#include <algorithm>

namespace lockstep::api {
namespace {

void collect(const Schema& ours, const Json& theirs, const std::string& path, std::vector<std::string>& lacking) {
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

std::vector<std::string> fields_lacking(const Schema& ours, const Json& theirs) {
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
