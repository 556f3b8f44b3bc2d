#include "operator/control/clock.h"

#include <random>

namespace lockstep::control {

Random system_random() {
  std::random_device seed;
  return [engine = std::mt19937_64((static_cast<uint64_t>(seed()) << 32) | seed()),
          unit = std::uniform_real_distribution<double>(0.0, 1.0)]() mutable { return unit(engine); };
}

}  // namespace lockstep::control
