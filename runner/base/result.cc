#include "runner/base/result.h"

#include <array>

namespace lockstep {

const char* to_string(ErrorCode code) {
  constexpr std::array kNames{"invalid", "not found", "corrupt", "retry",     "conflict",
                              "exists",  "forbidden", "gone",    "cancelled", "unavailable"};
  static_assert(kNames.size() == static_cast<size_t>(ErrorCode::kUnavailable) + 1);
  return kNames.at(static_cast<size_t>(code));
}

}  // namespace lockstep
