// TrainingState: everything that makes up "the state at a step" and outlives a generation: parameters and buffers (the
// workload's), optimizer, EMA, counters.
//
// Role: named once here for the transfer between ranks and for checkpoints, so that neither can forget a part.
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/loop/batch_math.h"
#include "runner/models/workload.h"
#include "runner/optim/ema.h"
#include "runner/optim/fused_adam.h"
#include "runner/optim/loss_scale.h"
#include "runner/optim/lr_schedule.h"

namespace lockstep {

// The same on every rank, because they change by reduced figures only; seconds_training is each rank's own clock.
struct Counters {
  int64_t step = 0;  // committed optimizer steps (skipped ones count: the position in the data)
  uint64_t lineage = 0;
  bool has_state = false;
  BatchShape batch;
  int64_t skipped_in_row = 0;
  int64_t skipped_total = 0;
  PlateauState plateau;
  LossScale loss_scale;
  double best_metric = -std::numeric_limits<double>::infinity();
  int64_t evaluations_without_best = 0;
  int64_t evaluated_step = -1;    // the step that the last evaluation looked at
  double seconds_training = 0.0;  // without evaluations; for the guide's log lines
  std::string resumed_from;       // what --resume named when this state began; empty = nothing
};

Json to_json(const Counters& counters);
// kCorrupt names the field.
Result<Counters> counters_from_json(const Json& json);

class TrainingState {
 public:
  // `workload` must outlive the state.
  TrainingState(Workload& workload, const TrainingOptions& options);

  Counters counters;

  [[nodiscard]] Adam& adam() { return adam_; }
  [[nodiscard]] Ema* ema() { return ema_ ? &*ema_ : nullptr; }
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }

  [[nodiscard]] NamedTensors model_tensors() const;  // parameters and buffers
  [[nodiscard]] NamedTensors optimizer_tensors() const;
  [[nodiscard]] NamedTensors ema_tensors() const;  // empty without EMA
  [[nodiscard]] NamedTensors all_tensors() const;  // for the transfer, prefixed "model." …

 private:
  Workload& workload_;
  NamedTensors parameters_;
  Adam adam_;
  std::optional<Ema> ema_;
};

}  // namespace lockstep
