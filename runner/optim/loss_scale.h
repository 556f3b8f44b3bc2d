// LossScale: the dynamic loss scale of fp16 training, as torch.amp.GradScaler. Pure; part of a checkpoint.
#pragma once

#include <cstdint>

namespace lockstep {

struct LossScale {
  static constexpr double kGrowthFactor = 2.0;
  static constexpr double kBackoffFactor = 0.5;
  static constexpr int64_t kGrowthInterval = 2000;  // good steps in a row before the scale grows

  double scale = 65536.0;
  int64_t good_steps = 0;  // in a row, since the last change

  // To be called after each step, in the order of steps, with a found_inf that is the same on every rank.
  void update(bool found_inf) {
    if (found_inf) {
      scale *= kBackoffFactor;
      good_steps = 0;
      return;
    }
    if (++good_steps == kGrowthInterval) {
      scale *= kGrowthFactor;
      good_steps = 0;
    }
  }

  bool operator==(const LossScale&) const = default;
};

}  // namespace lockstep
