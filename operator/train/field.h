// Fields of Kubernetes objects, read by their names. Pure.
//
// A field that is missing or has the wrong type reads as empty: the API server has checked what it stores. A caller
// that must tell a wrong type from a missing field must not use these.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/json.h"

namespace lockstep::train {

// nullptr when a step of the path is missing or is no object.
const Json* field(const Json& object, std::initializer_list<std::string_view> path);
std::string text_field(const Json& object, std::initializer_list<std::string_view> path);
std::optional<int64_t> number_field(const Json& object, std::initializer_list<std::string_view> path);
bool bool_field(const Json& object, std::initializer_list<std::string_view> path);
// An empty list when there is none.
const Json& list_field(const Json& object, std::initializer_list<std::string_view> path);

// A whole decimal number and nothing else.
std::optional<int64_t> parse_number(std::string_view text);

}  // namespace lockstep::train
