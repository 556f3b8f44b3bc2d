#include "runner/contract/gloo_interfaces.h"

#include <algorithm>

namespace lockstep {

std::vector<std::string> gloo_interfaces(std::string_view value) {
  std::vector<std::string> names;
  while (!value.empty()) {
    std::string_view name = value.substr(0, value.find(','));
    value.remove_prefix(std::min(value.size(), name.size() + 1));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

}  // namespace lockstep
