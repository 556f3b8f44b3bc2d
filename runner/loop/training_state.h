// TrainingState: everything that makes up "the state at a step" and outlives a generation: parameters and buffers (the
// workload's), optimizer, EMA, counters.
//
// Role: named once here for the transfer between ranks and for checkpoints, so that neither can forget a part.
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

namespace lockstep {

// The same on every rank, because they change by reduced figures only; seconds_training is each rank's own clock.
struct Counters {
  int64_t step = 0;  // committed optimizer steps (skipped ones count: the position in the data)
  uint64_t lineage = 0;
  bool has_state = false;
  BatchShape batch;
  DataPlace place;          // in the data: the batch of the next step
  int64_t epoch_steps = 0;  // of the epoch of `place`
  int64_t phase = 0;        // of the workload's
  int64_t phase_epoch = 0;  // the epoch that the phase began with
  int64_t skipped_in_row = 0;
  int64_t skipped_total = 0;
  PlateauState plateau;
  LossScale loss_scale;
  double best_metric = -std::numeric_limits<double>::infinity();
  int64_t evaluations_without_best = 0;
  int64_t evaluated_step = -1;    // the step that the last evaluation looked at
  double seconds_training = 0.0;  // without evaluations; for the guide's log lines
  std::string resumed_from;       // what --resume named when this state began; empty = nothing
  uint64_t generation = 0;        // newest that this state was trained in
  uint64_t run = 0;               // … and the run's number, as checkpoints are stamped
  // "train_loss" and, where there are several, its terms, over the steps since the last evaluation that were not
  // skipped: their means are figures of the next one.
  std::vector<MetricSum> training;
};

// What a step turned out to be, the same on every rank.
struct StepReport {
  int64_t step = 0;  // 0-based
  int64_t epoch = 0;
  int64_t samples = 0;                                // of the global batch
  double loss = 0.0;                                  // over all ranks, with the regularization
  std::vector<std::pair<std::string, double>> terms;  // of the loss, by name, where there are several
  double grad_norm = 0.0;                             // before clipping
  double lr = 0.0;
  bool skipped = false;              // not finite: no parameter was changed
  std::optional<double> loss_scale;  // of fp16: what the step was scaled by; not handed on with a journal
};

// The counters that a step's figures change: skipped steps, the loss scale of fp16, the sums of the losses. In the
// order of steps.
void count_figures(Counters& counters, const StepReport& report);

// The counters that an evaluation's figures change: plateau, best figure, patience. Is it the best so far? No value:
// there is no figure that says so.
std::optional<bool> count_evaluation(Counters& counters, const WorkloadInfo& info, const TrainingOptions& training,
                                     const EvaluationMetrics& metrics);

struct EvaluationNote {
  Workload::EvaluationReport report;
  std::vector<std::string> outputs;  // names of the files that it leaves, see Workload::outputs
  double lr = 0.0;                   // see Workload::OutputState
};

// What every rank remembers of the last steps, so that a new rank 0 can write down what the one before it did not.
struct Journal {
  static constexpr size_t kStepsMax = 8;  // more than any lag
  std::deque<StepReport> steps;           // newest last
  std::optional<EvaluationNote> evaluation;
  bool improved = false;  // at that evaluation, and this rank has taken no checkpoint since
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
  // From now on the groups of these names stay as they are: their parameters ask for no gradient. Drops the gradients
  // of all others; a reducer and a step of before are of no use any more.
  void freeze(const std::vector<std::string>& groups);
  // By name: "" where there is one, else the decay ("0.9999"). The first is what is evaluated.
  using NamedEmas = std::vector<std::pair<std::string, Ema>>;
  [[nodiscard]] NamedEmas& emas() { return emas_; }
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const NamedTensors& trained() const { return trained_; }  // those that are not frozen
  // Always 0, one element for each loss term, whose gradients are made to be the terms: reduced with the others, they
  // are those of all ranks at the very moment of the commit, for no message of their own.
  [[nodiscard]] const at::Tensor& loss_probe() const { return loss_probe_; }
  // What the reducer sums: the gradients of the parameters that are trained, and the probe's.
  [[nodiscard]] NamedTensors reduced() const;

  [[nodiscard]] NamedTensors model_tensors() const;  // parameters and buffers
  [[nodiscard]] NamedTensors optimizer_tensors() const;
  // While it lives the parameters hold the first average; nothing without one.
  [[nodiscard]] std::optional<Ema::SwapIn> swap_in_average();
  [[nodiscard]] NamedTensors all_tensors() const;  // for the transfer, prefixed "model." …

 private:
  Workload& workload_;
  NamedTensors parameters_;
  NamedTensors trained_;
  at::Tensor loss_probe_;  // [number of loss terms], fp32, on the parameters' device
  Adam adam_;
  NamedEmas emas_;
};

}  // namespace lockstep
