// TrainingState: everything that makes up "the state at a step" and outlives a generation: parameters and buffers (the
// workload's), optimizer, EMA, counters.
//
// Role: the one list of these parts, used by the transfer between ranks and by checkpoints, so that neither forgets
// one.
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/data/batch_source.h"
#include "runner/loop/batch_math.h"
#include "runner/models/workload.h"
#include "runner/optim/ema.h"
#include "runner/optim/fused_adam.h"
#include "runner/optim/loss_scale.h"
#include "runner/optim/lr_schedule.h"
#include "runner/telemetry/step_report.h"

namespace lockstep {

// The same on every rank, because only figures that were summed over all ranks change them. The exception is
// seconds_training, which each rank measures itself.
struct Counters {
  int64_t step = 0;  // committed optimizer steps (skipped ones count: the position in the data)
  uint64_t lineage = 0;
  bool has_state = false;
  BatchShape batch;
  DataPosition position;    // in the data: the batch of the next step
  int64_t epoch_steps = 0;  // number of steps in the epoch of `position`
  int64_t phase = 0;        // index into WorkloadInfo::phases
  int64_t phase_epoch = 0;  // the epoch that the phase began with
  int64_t skipped_in_row = 0;
  int64_t skipped_total = 0;
  PlateauState plateau;
  LossScale loss_scale;
  double best_metric = -std::numeric_limits<double>::infinity();
  // Of early stopping: the figure of the last evaluation that was better than this field by more than
  // --early_stop_min_delta, and the number of evaluations since then.
  double patience_best = -std::numeric_limits<double>::infinity();
  int64_t evaluations_without_best = 0;
  int64_t evaluated_step = -1;    // the step whose parameters were evaluated last
  double seconds_training = 0.0;  // without evaluations; for the guide's log lines
  std::string resumed_from;       // the value of --resume when this state began; empty: none was given
  std::string weights_from;       // the same of --state_dict_path
  uint64_t generation = 0;        // the newest generation that this state was trained in
  uint64_t run = 0;               // the run number of its checkpoints (CheckpointStamp)
  // Sums over the steps since the last evaluation, without skipped ones: "train_loss" and, with several loss terms,
  // "train_<term>" for each. The next evaluation reports their means.
  std::vector<MetricSum> training;
};

// Updates the counters that depend on a step's figures: skipped steps, the loss scale of fp16, the sums of the losses.
// To be called in the order of steps.
void count_figures(Counters& counters, const StepReport& report);

// Updates the counters that depend on an evaluation's figures: plateau, best figure, patience. Returns whether this
// evaluation is the best so far; nullopt when `metrics` lacks the figure that decides (WorkloadInfo::best).
std::optional<bool> count_evaluation(Counters& counters, const WorkloadInfo& info, const TrainingOptions& training,
                                     const EvaluationMetrics& metrics);

struct EvaluationNote {
  Workload::EvaluationReport report;
  std::vector<std::string> outputs;  // names of the evaluation's files, see Workload::outputs
  double lr = 0.0;                   // see Workload::OutputState
};

// What every rank remembers of the last steps and the last evaluation, so that a new rank 0 can write what the rank 0
// before it did not write.
struct Journal {
  static constexpr size_t kStepsMax = 8;  // more than DeviceStream::lag() can be
  std::deque<StepReport> steps;           // newest last
  std::optional<EvaluationNote> evaluation;
  bool improved = false;  // that evaluation was the best so far, and this rank has staged no checkpoint since
  void add(const StepReport& report);
};
Json to_json(const Journal& journal);
Result<Journal> journal_from_json(const Json& json);

Json to_json(const Counters& counters);
// kCorrupt names the field.
Result<Counters> counters_from_json(const Json& json);

class TrainingState {
 public:
  // `workload` must outlive the state.
  TrainingState(Workload& workload, const TrainingOptions& options);

  Counters counters;
  Journal journal;

  [[nodiscard]] Adam& adam() { return adam_; }
  // From now on the groups of these names are not trained: their parameters require no gradient. Drops all gradients. A
  // GradReducer and a TrainStep that were made before must be made anew.
  void freeze(const std::vector<std::string>& groups);
  // By name: "" when there is only one, else the decay ("0.9999"). Evaluations use the first.
  using NamedEmas = std::vector<std::pair<std::string, Ema>>;
  [[nodiscard]] NamedEmas& emas() { return emas_; }
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const NamedTensors& trained() const { return trained_; }  // those that are not frozen
  // One element for each loss term, always 0. TrainStep builds the loss so that the probe's gradient is the value of
  // each term. The reducer sums it over all ranks together with the other gradients, so that the loss over all ranks is
  // known at the commit without a message of its own.
  [[nodiscard]] const at::Tensor& loss_probe() const { return loss_probe_; }
  // What the reducer sums: the gradients of the parameters that are trained, and the probe's.
  [[nodiscard]] NamedTensors reduced() const;

  [[nodiscard]] NamedTensors model_tensors() const;  // parameters and buffers
  [[nodiscard]] NamedTensors optimizer_tensors() const;
  // While the returned object lives, the parameters hold the first EMA. nullopt: there is none.
  [[nodiscard]] std::optional<Ema::SwapIn> swap_in_average();
  [[nodiscard]] NamedTensors all_tensors() const;  // for the transfer, prefixed "model.", "optimizer." and "ema."

 private:
  Workload& workload_;
  NamedTensors parameters_;
  NamedTensors trained_;
  at::Tensor loss_probe_;  // [number of loss terms], fp32, on the parameters' device
  Adam adam_;
  NamedEmas emas_;
};

}  // namespace lockstep
