#include "operator/kube/object_text.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "runner/base/json_text.h"

namespace lockstep::kube {
namespace {

// How much may still be read.
struct Budget {
  size_t bytes;
  size_t values;
};

// Takes a field or a member out of the budget; where it does not fit, returns why: "spec has 1400012 bytes …". A
// message that quotes these words shows 80 characters.
std::optional<std::string> why_too_large(const JsonMember& field, Budget& left) {
  const auto words = [&](size_t found, size_t most, const char* of_what) {
    std::string text(field.name.substr(1, field.name.size() - 2));
    return text.append(" has ")
        .append(std::to_string(found))
        .append(of_what)
        .append("; the operator reads at most " + std::to_string(most));
  };
  constexpr size_t kDepthMax = kJsonDepthMax - 2;  // the document has the object and the list around it
  if (field.text.size() > left.bytes) return words(field.text.size(), left.bytes, " bytes of JSON");
  const JsonSize size = size_of_json(field.text);
  if (size.depth > kDepthMax) return words(size.depth, kDepthMax, " levels of nesting");
  if (size.values > left.values) return words(size.values, left.values, " values of JSON");
  left.bytes -= field.text.size();
  left.values -= size.values;
  return std::nullopt;
}

bool is_object(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{';
}

Error no_object() { return {ErrorCode::kCorrupt, "it is no JSON object"}; }

// The object of these members, each as `read` makes it.
Result<Json> read_members(const std::vector<JsonMember>& members,
                          const std::function<Result<Json>(const JsonMember&)>& read) {
  Json object = Json::object();
  for (const JsonMember& member : members) {
    TRY_ASSIGN(const Json name, parse_json(member.name, "a name"));
    TRY_ASSIGN(object[name.get<std::string>()], read(member));
  }
  return object;
}

Result<Json> read_field(const JsonMember& field, Budget& left) {
  const std::optional<std::string> why = why_too_large(field, left);
  if (!why) return parse_json(field.text, field.name);
  if (!is_object(field.text)) return Json(*why);
  auto members = members_of_json(field.text);
  if (!members) return no_object();
  // The smallest first: a name, a UID always fit.
  std::stable_sort(members->begin(), members->end(),
                   [](const JsonMember& a, const JsonMember& b) { return a.text.size() < b.text.size(); });
  Budget small{kSmallBytesMax, kSmallValuesMax};
  return read_members(*members, [&](const JsonMember& member) -> Result<Json> {
    if (why_too_large(member, small)) return Json(*why);
    return parse_json(member.text, member.name);
  });
}

}  // namespace

Result<Json> read_object(std::string_view text, size_t field_bytes_max) {
  const auto fields = members_of_json(text);
  if (!fields || !is_object(text)) return no_object();
  Budget values{0, kFieldValuesMax};  // of all fields
  return read_members(*fields, [&](const JsonMember& field) {
    Budget of_status{kStatusBytesMax, kStatusValuesMax};
    values.bytes = field_bytes_max;
    return read_field(field, field.name == "\"status\"" ? of_status : values);
  });
}

Result<ListHead> read_list(std::string_view text, const std::function<void(Json)>& on_item, size_t field_bytes_max) {
  const Error no_list{ErrorCode::kCorrupt, "it is no list"};
  const auto fields = members_of_json(text);
  if (!fields) return no_list;
  std::optional<std::string_view> metadata;
  std::optional<std::string_view> items;
  for (const JsonMember& field : *fields) {
    if (field.name == "\"metadata\"") metadata = field.text;
    if (field.name == "\"items\"") items = field.text;
  }
  if (!metadata || !items) return no_list;
  TRY_ASSIGN(const Json head, parse_json(*metadata, "metadata"));
  // "items": null is what Go writes for none.
  const auto entries = *items == "null" ? std::vector<JsonMember>() : members_of_json(*items);
  if (!head.is_object() || !entries || is_object(*items)) return no_list;
  for (const JsonMember& entry : *entries) {
    TRY_ASSIGN(Json item, read_object(entry.text, field_bytes_max));
    on_item(std::move(item));
  }
  return ListHead{text_field(head, {"resourceVersion"}), text_field(head, {"continue"})};
}

}  // namespace lockstep::kube
