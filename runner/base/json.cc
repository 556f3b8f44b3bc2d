#include "runner/base/json.h"

#include <limits>

#include "runner/base/json_text.h"
#include "runner/base/parse_number.h"

namespace lockstep {

std::string dump_line(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_line(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string dump_pretty(const OrderedJson& value) {
  return value.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Json> parse_json(std::string_view text, std::string_view what) {
  if (const size_t depth = size_of_json(text).depth; depth > kJsonDepthMax) {
    return corrupt(
        what, "is nested " + std::to_string(depth) + " levels deep; expected at most " + std::to_string(kJsonDepthMax));
  }
  // The parser takes a zero byte for the end of the text, and would leave out what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return corrupt(what, "has a byte with the value 0 at position " + std::to_string(zero) + "; expected text");
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string(what) + " is not valid JSON: " + e.what()};
  }
}

const Json* field(const Json& object, std::initializer_list<std::string_view> path) {
  const Json* at = &object;
  for (const std::string_view name : path) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(name);
    if (it == at->end()) return nullptr;
    at = &*it;
  }
  return at;
}

std::string text_field(const Json& object, std::initializer_list<std::string_view> path) {
  const Json* const value = field(object, path);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

std::optional<int64_t> number_field(const Json& object, std::initializer_list<std::string_view> path) {
  const Json* const value = field(object, path);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (value->is_number_unsigned() && value->get<uint64_t>() > kMax) return std::nullopt;
  return value->get<int64_t>();
}

bool bool_field(const Json& object, std::initializer_list<std::string_view> path) {
  const Json* const value = field(object, path);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

const Json& list_field(const Json& object, std::initializer_list<std::string_view> path) {
  static const Json none = Json::array();
  const Json* const value = field(object, path);
  return value != nullptr && value->is_array() ? *value : none;
}

std::optional<int64_t> parse_number(std::string_view text) { return parse_number<int64_t>(text); }

}  // namespace lockstep
