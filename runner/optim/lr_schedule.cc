#include "runner/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep {

namespace {

double exponential(double steps_after_warmup, const LrScheduleOptions& options) {
  return options.lr * std::pow(options.decay_rate, steps_after_warmup / static_cast<double>(options.decay_steps));
}

double cosine(double steps_after_warmup, const LrScheduleOptions& options) {
  const auto length = static_cast<double>(std::max<int64_t>(options.total_steps - options.warmup_steps, 1));
  const double done = std::min(steps_after_warmup / length, 1.0);
  return options.min_lr + (options.lr - options.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

double noam(double updates, const LrScheduleOptions& options) {
  const auto warmup = static_cast<double>(std::max<int64_t>(options.warmup_steps, 1));
  return options.lr * std::min(updates / warmup, std::sqrt(warmup / updates));
}

}  // namespace

PlateauState plateau_after(const PlateauState& state, double figure, const PlateauOptions& options) {
  PlateauState next = state;
  const double enough = std::isfinite(state.best) ? std::abs(state.best) * options.threshold : 0.0;
  if (figure > state.best + enough) {
    next.best = figure;
    next.bad_evaluations = 0;
    return next;
  }
  ++next.bad_evaluations;
  if (next.bad_evaluations > options.patience) {
    next.factor *= options.factor;
    next.bad_evaluations = 0;
  }
  return next;
}

double lr_value(int64_t step, const LrScheduleOptions& options, const PlateauState& plateau) {
  const auto updates = static_cast<double>(step + 1);
  if (options.kind == LrScheduleKind::kNoam) return noam(updates, options);
  if (options.kind == LrScheduleKind::kPlateau) {
    const double reduced = std::max(options.lr * plateau.factor, std::min(options.lr, options.min_lr));
    return step < options.warmup_steps ? reduced * updates / static_cast<double>(options.warmup_steps) : reduced;
  }
  if (step < options.warmup_steps) return options.lr * updates / static_cast<double>(options.warmup_steps);
  const auto after = static_cast<double>(step - options.warmup_steps);
  if (options.kind == LrScheduleKind::kExponential) return exponential(after, options);
  if (options.kind == LrScheduleKind::kCosine) return cosine(after, options);
  return options.lr;
}

double scaled_lr(double lr, LrScaling scaling, int declared_world_size, int64_t global_batch) {
  constexpr double kBaseBatch = 256.0;
  const auto ranks = static_cast<double>(declared_world_size);
  switch (scaling) {
    case LrScaling::kNone:
      return lr;
    case LrScaling::kLinear:
      return lr * ranks;
    case LrScaling::kSqrt:
      return lr * std::sqrt(ranks);
    case LrScaling::kBatch:
      return lr * static_cast<double>(global_batch) / kBaseBatch;
  }
  return lr;
}

LrScheduleOptions lr_schedule_options(const TrainingOptions& training, double lr, int64_t warmup_steps,
                                      int64_t total_steps) {
  return {.kind = training.lr_schedule,
          .lr = lr,
          .warmup_steps = warmup_steps,
          .total_steps = total_steps,
          .decay_steps = training.lr_decay_steps,
          .decay_rate = training.lr_decay_rate,
          .min_lr = training.min_lr};
}

PlateauOptions plateau_options(const TrainingOptions& training) {
  return {.factor = training.plateau_factor, .patience = training.plateau_patience};
}

}  // namespace lockstep
