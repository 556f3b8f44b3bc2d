// TrainStep: one optimizer update over all ranks.
//
// micro-batches → forward/backward (buckets overlap on the last one only) → clip by global norm → finite check →
// optimizer → EMA. The loss is reduced with the gradients (TrainingState::loss_probe). The host waits for the device
// only to read figures that are DeviceStream::lag() steps old.
//
// Batches go to the device ahead of the step: while one micro-batch is computed, the next one is on its way (Upload).
//
// Between its start and the reduction of its gradients a step waits for no peer, because its weights (the denominators
// of the loss) were summed over the ranks during the step before. That small all-reduce also carries requests to stop
// or to leave together; it begins before the forward and has ended by the time the gradients are reduced. Only a
// group's first step sums its own weights before its forward.
//
// The commit: until the reducer has returned, nothing of the state has changed, and a step that
// throws is redone from its beginning. On the device the commit gate decides whether a step is committed. Each step's
// figures include the gate's count; a step that the gate did not let through is discarded together with its figures,
// before anything is counted or published.
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
#include "runner/data/batch_source.h"
#include "runner/loop/batch_queue.h"
#include "runner/loop/phases.h"
#include "runner/loop/rank_context.h"
#include "runner/loop/stop_token.h"
#include "runner/loop/training_state.h"

namespace lockstep {

class CommitGate;
class GradReducer;
class ProcessGroup;
class Upload;

struct StepOutcome {
  std::vector<StepReport> reports;  // of this and earlier steps, in order, as far as their figures are known by now
  int64_t samples = 0;              // of this step's global batch
  StepRequests requests;            // what any rank was asked to do: all ranks do it after this step
};

class TrainStep {
 public:
  struct Context {
    const RankContext& rank;
    const TrainingOptions& training;  // the flags of the present phase (options_in)
    TrainingState& state;
    ProcessGroup& group;
    GradReducer& reducer;
    BatchSource& source;  // of the training split
    BatchQueue& queue;
    Upload& upload;
    CommitGate& gate;
    PhaseSteps steps;
    std::function<bool()> is_cut = [] { return false; };  // has the agent cut this group?
    // Called before the commit, which changes the state's tensors.
    std::function<void()> before_change = [] {};
  };
  explicit TrainStep(const Context& context);
  ~TrainStep();

  // Runs step `state.counters.step`, commits it and advances the counter.
  StepOutcome run(const StepRequests& requests);

  // Waits for all steps and returns the reports that run() has not returned yet. Every rank calls it at the same step.
  // Afterwards the state is that of `state.counters.step`, on the device too.
  std::vector<StepReport> flush();

  // After a step threw. Sets `state.counters.step` to the number of steps that the device has committed, and returns
  // the reports of those not yet reported. The commit gate must be shut before. Needs no peer.
  std::vector<StepReport> abandon();

 private:
  struct Pending;
  struct Planned;
  struct Fetched;

  [[nodiscard]] Planned plan(int64_t step, const DataPosition& position);
  Fetched fetch_next();
  [[nodiscard]] std::vector<double> scales(const std::vector<double>& totals, double loss_scale) const;
  std::vector<at::Tensor> forward(const DeviceBatch& batch);
  void begin_upload(const Fetched& fetched, size_t micro_batch);
  [[nodiscard]] at::Tensor reach_every_parameter() const;
  void zero_gradients();
  [[nodiscard]] std::vector<StepReport> report_up_to(int64_t step);
  void report_oldest();

  Context context_;
  const std::vector<LossTerm>& terms_;
  int64_t first_step_;           // the first step that this object runs
  DataPosition first_position_;  // the position in the data of that step
  int64_t gate_at_first_;        // the commit gate's count before that step
  LrScheduleOptions schedule_;
  // The first micro-batch also looks for parameters that no loss term uses. It walks the graphs of the terms
  // themselves: the loss contains reach_every_parameter(), from which every parameter is reached.
  bool checks_graph_;
  std::deque<Planned> coming_;            // steps whose batches the queue is fetching
  int64_t unplanned_step_ = first_step_;  // the first step after those
  DataPosition unplanned_position_ = first_position_;
  std::unique_ptr<Fetched> next_;  // the step that run() does next, with its batch
  std::vector<double> totals_;     // the weights of that step over all ranks, by loss term; empty: not summed yet
  std::deque<Pending> pending_;
  std::vector<StepReport> known_;  // read and counted, and not yet returned
  bool is_abandoned_ = false;
};

}  // namespace lockstep
