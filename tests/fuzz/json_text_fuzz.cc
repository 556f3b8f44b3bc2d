// Any bytes as JSON before it is parsed, as an object and as a list of the API server: the counts are upper bounds of
// what a parser finds, the parts are the document's, and small documents are read whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "operator/kube/object_text.h"
#include "runner/base/check.h"
#include "runner/base/json.h"
#include "runner/base/json_text.h"

namespace {

using namespace lockstep;

size_t values_of(const Json& json) {
  size_t values = 1;
  if (json.is_structured()) {
    for (const Json& child : json) values += values_of(child);
  }
  return values;
}

size_t depth_of(const Json& json) {
  if (!json.is_structured()) return 0;
  size_t depth = 0;
  for (const Json& child : json) depth = std::max(depth, depth_of(child));
  return depth + 1;
}

void check_document(std::string_view text, const Json& json) {
  const JsonSize size = size_of_json(text);
  LOCKSTEP_CHECK(size.values >= values_of(json), "no value is missed");
  LOCKSTEP_CHECK(size.depth == depth_of(json), "no level is missed");
  const auto members = members_of_json(text);
  LOCKSTEP_CHECK(members.has_value() == json.is_structured(), "an object or a list has parts");
  if (!members) return;
  Json again = json.is_object() ? Json::object() : Json::array();
  for (const JsonMember& member : *members) {
    const Result<Json> value = parse_json(member.text, "part");
    LOCKSTEP_CHECK(value.ok(), "each part is a value");
    if (json.is_object()) {
      again[parse_json(member.name, "name")->get<std::string>()] = *value;
    } else {
      again.push_back(*value);
    }
  }
  LOCKSTEP_CHECK(dump_line(again) == dump_line(json), "the parts are the document");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Json> json = parse_json(text, "input");
  if (json.ok()) check_document(text, *json);
  const Result<Json> object = kube::read_object(text);
  if (json.ok() && json->is_object()) LOCKSTEP_CHECK(object.ok(), "an object is read");
  if (object.ok()) LOCKSTEP_CHECK(depth_of(*object) <= kJsonDepthMax, "what is read can be copied");
  static_cast<void>(kube::read_list(
      text, [](const Json& item) { LOCKSTEP_CHECK(item.is_object(), "a list has objects"); }, 64));
  return 0;
}
