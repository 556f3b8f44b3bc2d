#include "operator/api/schema_gap.h"

namespace lockstep::api {
namespace {

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() ? nullptr : &*at;
}

// Does the server keep unknown fields of this object?
bool keeps_everything(const Json& theirs) {
  const Json* const keeps = member(theirs, "x-kubernetes-preserve-unknown-fields");
  return keeps != nullptr && *keeps == true;
}

void collect(const Schema& ours, const Json& theirs, const std::string& path, std::vector<std::string>& lacking) {
  if (keeps_everything(theirs)) return;
  const Json* const properties = member(theirs, "properties");
  for (const auto& [name, schema] : ours.properties) {
    if (path.empty() && name == "metadata") continue;  // defined by Kubernetes for every kind
    const std::string field = field_below(path, name);
    const Json* const found = properties == nullptr ? nullptr : member(*properties, name.c_str());
    if (found == nullptr) {
      lacking.push_back(field);
    } else {
      collect(schema, *found, field, lacking);
    }
  }
  if (const Json* const items = member(theirs, "items"); items != nullptr && ours.items) {
    collect(*ours.items, *items, path + "[]", lacking);
  }
  if (const Json* const values = member(theirs, "additionalProperties"); values != nullptr && ours.additional) {
    collect(*ours.additional, *values, path + "{}", lacking);
  }
}

bool is_kind(const Json& schema, std::string_view group, std::string_view kind) {
  const Json* const kinds = member(schema, "x-kubernetes-group-version-kind");
  if (kinds == nullptr || !kinds->is_array()) return false;
  for (const Json& one : *kinds) {
    const Json* const its_group = member(one, "group");
    const Json* const its_kind = member(one, "kind");
    if (its_group != nullptr && its_kind != nullptr && *its_group == group && *its_kind == kind) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> fields_lacking(const Schema& ours, const Json& theirs) {
  std::vector<std::string> lacking;
  collect(ours, theirs, "", lacking);
  return lacking;
}

const Json* schema_of_kind(const Json& openapi, std::string_view group, std::string_view kind) {
  const Json* const components = member(openapi, "components");
  const Json* const schemas = components == nullptr ? nullptr : member(*components, "schemas");
  if (schemas == nullptr || !schemas->is_object()) return nullptr;
  for (const Json& schema : *schemas) {
    if (is_kind(schema, group, kind)) return &schema;
  }
  return nullptr;
}

}  // namespace lockstep::api
