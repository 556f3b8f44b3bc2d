// `generated[:COUNT[:SECOND]]`: how a data set that is made in memory is named where a path could stand.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runner/base/result.h"

namespace lockstep {

struct GeneratedNumber {
  std::string name;  // as messages call it: "COUNT"
  int64_t min = 0;
  int64_t max = 0;
  int64_t value = 0;  // where the text says none; messages show `example`
  int64_t example = 0;
};

// Values of both numbers; nothing for other words, which are paths. kInvalid for numbers that cannot be.
Result<std::optional<std::array<int64_t, 2>>> parse_generated(std::string_view text,
                                                              const std::array<GeneratedNumber, 2>& numbers);

}  // namespace lockstep
