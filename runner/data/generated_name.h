// Parses `generated[:COUNT[:SECOND]]`, which names a data set made in memory in place of a path.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/result.h"

namespace lockstep {

// Whether a path is such a name; its numbers may be wrong.
bool is_generated(std::string_view path);

inline constexpr int64_t kGeneratedMax = 1'000'000;  // images or structures

struct GeneratedNumber {
  std::string name;  // for messages: "COUNT"
  int64_t min = 0;
  int64_t max = 0;
  int64_t value = 0;  // the default; messages show `example`
  int64_t example = 0;
};

// The values of both numbers; nullopt for other texts, which are paths. kInvalid for numbers out of range.
Result<std::optional<std::array<int64_t, 2>>> parse_generated(std::string_view text,
                                                              const std::array<GeneratedNumber, 2>& numbers);

}  // namespace lockstep
