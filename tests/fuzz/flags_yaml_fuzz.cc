// Any bytes as a file of flags: a refusal that names the line, or flat pairs.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runner/base/check.h"
#include "runner/config/flags_yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto flags = lockstep::parse_flags_yaml(text, "fuzz.yaml");
  if (!flags.ok()) {
    LOCKSTEP_CHECK(flags.error().message.starts_with("fuzz.yaml:"), "a refusal names file and line");
    return 0;
  }
  for (const lockstep::YamlFlag& flag : *flags) {
    LOCKSTEP_CHECK(!flag.name.empty() && !flag.value.empty() && flag.line >= 1, "a name, a value, a line");
  }
  return 0;
}
