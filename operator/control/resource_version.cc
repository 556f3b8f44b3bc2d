#include "operator/control/resource_version.h"

#include <charconv>

namespace lockstep::control {

std::optional<uint64_t> version_number(std::string_view resource_version) {
  uint64_t number = 0;
  const char* end = resource_version.data() + resource_version.size();
  const auto [stopped_at, error] = std::from_chars(resource_version.data(), end, number);
  if (resource_version.empty() || error != std::errc{} || stopped_at != end) return std::nullopt;
  return number;
}

}  // namespace lockstep::control
