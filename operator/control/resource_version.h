// resourceVersion: the order of an object's states. Pure.
//
// Versions of one resource are decimal numbers that grow with time (promised by the API's conventions since 1.35, true
// of etcd's revisions always). One that is not a number is opaque: it can only be compared for equality.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runner/base/parse_number.h"

namespace lockstep::control {

// Nothing when the version is opaque (or empty).
inline std::optional<uint64_t> version_number(std::string_view resource_version) {
  return parse_number<uint64_t>(resource_version);
}

}  // namespace lockstep::control
