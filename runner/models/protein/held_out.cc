#include "runner/models/protein/held_out.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

int64_t held_out_count(double share, int64_t count) {
  if (share <= 0.0 || count < 2) return 0;
  const auto wanted = static_cast<int64_t>(std::llround(share * static_cast<double>(count)));
  return std::clamp<int64_t>(wanted, 1, count - 1);
}

}  // namespace lockstep
