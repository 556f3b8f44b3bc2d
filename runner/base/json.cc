#include "runner/base/json.h"

namespace lockstep {

std::string dump_line(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_line(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string dump_pretty(const OrderedJson& value) {
  return value.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Json> parse_json(std::string_view text, std::string_view what) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string(what) + " is not valid JSON: " + e.what()};
  }
}

}  // namespace lockstep
