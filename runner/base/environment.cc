#include "runner/base/environment.h"

#include <unistd.h>

#include <array>
#include <climits>

namespace lockstep {

Environment read_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string read_host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string variable(const Environment& environment, std::string_view name) {
  const auto it = environment.find(std::string(name));
  return it == environment.end() ? std::string() : it->second;
}

}  // namespace lockstep
