// TrainStep: one optimizer update over all ranks. The function to read aloud.
//
// micro-batches → forward/backward (buckets overlap on the last one only) → clip by global norm → finite check →
// optimizer → EMA. Meanwhile one small all-reduce on the host carries Σweight, the stop flags and the loss of an
// earlier step; nothing waits for the device but figures that are kLag steps old.
// Threads: the training thread. Errors: throws what torch and the group throw (dist/fault.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/data/sampler.h"
#include "runner/loop/training_state.h"
#include "runner/models/workload.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

class GradReducer;
class ProcessGroup;

// What a step turned out to be, the same on every rank; known up to kLag + 1 steps later.
struct StepReport {
  int64_t step = 0;  // 0-based
  int64_t epoch = 0;
  int64_t samples = 0;     // of the global batch
  double loss = 0.0;       // Σloss / Σweight over all ranks, with the regularization
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  bool skipped = false;  // not finite: no parameter was changed
};

struct StepOutcome {
  std::vector<StepReport> reports;  // of earlier steps, in order
  int64_t samples = 0;              // of this step's global batch
  int stop_code = 0;                // 130 or 143 when any rank was asked to stop; acted on by all at this step
};

class TrainStep {
 public:
  struct Parts {
    const RunConfig& config;
    Workload& workload;
    TrainingState& state;
    ProcessGroup& group;
    GradReducer& reducer;
    Sampler& sampler;
    PhaseClock& clock;
    at::Device device;
    Precision precision;
    int64_t total_steps;
  };
  explicit TrainStep(const Parts& parts);
  ~TrainStep();

  // Runs step `state.counters.step`, commits it and advances the counter. `stop_requested`: 0, 130 or 143.
  StepOutcome run(int stop_requested);

  // Reports of all steps not yet reported; every rank calls it at the same step.
  std::vector<StepReport> flush();

 private:
  struct Pending;
  using MicroBatches = std::vector<std::unique_ptr<MicroBatch>>;

  MicroBatches make_micro_batches(int64_t step, int64_t* batch_samples);
  at::Tensor forward(const MicroBatch& batch);
  [[nodiscard]] at::Tensor empty_share_loss() const;
  void zero_gradients();
  void remember(Pending pending);
  [[nodiscard]] double harvest_oldest();
  StepReport report_oldest(double loss_sum);

  Parts parts_;
  int64_t lag_;  // steps after which figures are read from the device
  LrScheduleOptions schedule_;
  std::deque<Pending> pending_;
};

}  // namespace lockstep
