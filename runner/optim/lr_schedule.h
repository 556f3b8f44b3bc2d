// Learning-rate schedules: the rate of a step as a pure function of the step, and of the plateau state where there is
// one. Nothing else is saved, so a resumed run has the rate that the uninterrupted one would have had.
// Threads: pure. Units: steps count from 0 (the rate of the first update is value(0)).
#pragma once

#include <cstdint>
#include <limits>

#include "runner/config/run_config.h"

namespace lockstep {

struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  double lr = 1e-3;            // after scaling
  int64_t warmup_steps = 0;    // rate (s+1)/w of lr for step s < w
  int64_t total_steps = 0;     // cosine reaches min_lr here
  int64_t decay_steps = 1000;  // exponential
  double decay_rate = 0.95;    // exponential
  double min_lr = 0.0;         // cosine, plateau
};

// As torch.optim.lr_scheduler.ReduceLROnPlateau with mode "max", relative threshold and no cooldown. For a figure of
// which less is better, the caller passes the negated figure (torch's mode "min"). Part of a checkpoint.
struct PlateauState {
  double best = -std::numeric_limits<double>::infinity();
  int64_t bad_evaluations = 0;
  double factor = 1.0;  // present multiplier of the learning rate

  bool operator==(const PlateauState&) const = default;
};

struct PlateauOptions {
  double factor = 0.5;
  int64_t patience = 3;     // evaluations without an improvement before the rate is reduced
  double threshold = 1e-4;  // least improvement that counts, relative to the magnitude of the best figure
};

// The state after one more evaluation. A figure that is not a number counts as no improvement.
PlateauState plateau_after(const PlateauState& state, double figure, const PlateauOptions& options);

// The rate of update `step`.
//   constant     lr
//   exponential  lr * decay_rate^((s-w)/decay_steps)
//   cosine       from lr at s = w to min_lr at s = total_steps, min_lr afterwards
//   noam         lr * min((s+1)/w, sqrt(w/(s+1))): Vaswani et al. 2017 §5.3, scaled so that its peak is lr
//   plateau      max(lr * plateau.factor, min_lr); during warm-up the rate may be below min_lr
// All but noam warm up linearly first.
double lr_value(int64_t step, const LrScheduleOptions& options, const PlateauState& plateau = {});

// --lr_scaling: by the declared world size (nodes x processes per node), which does not change when a run shrinks, or
// by the global batch / 256 (Goyal et al., 2017; diffusion models give their base rate for 256 samples).
double scaled_lr(double lr, LrScaling scaling, int declared_world_size, int64_t global_batch);

// lr: after scaling. warmup_steps: includes --warmup_epochs.
LrScheduleOptions lr_schedule_options(const TrainingOptions& training, double lr, int64_t warmup_steps,
                                      int64_t total_steps);
PlateauOptions plateau_options(const TrainingOptions& training);

}  // namespace lockstep
