// TrainStep: one optimizer update over all ranks. The function to read aloud.
//
// micro-batches → forward/backward (buckets overlap on the last one only) → clip by global norm → finite check →
// optimizer → EMA. The loss is reduced with the gradients (TrainingState::loss_probe). Nothing waits for the device but
// figures that are DeviceStream::lag() steps old.
//
// Batches go to the device ahead of the step: while one micro-batch is computed, the next one is on its way (Upload).
//
// Between its start and the reduction of its gradients a step waits for no peer: its weights (the denominators of the
// loss) were summed during the step before. The all-reduce that sums those of the next step carries what the ranks are
// asked to do, too; it is begun before the forward and over when the gradients are reduced. Only a group's first step
// sums its weights up front.
//
// The commit (architecture §3): until the reducer has returned, nothing of the state has changed; a step that throws
// is redone from its beginning. The commit gate decides: its count comes with each step's figures, and figures of
// a step that it has not let through are thrown away with the step, before anything is counted or published.
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
#include "runner/loop/stop_token.h"
#include "runner/loop/training_state.h"
#include "runner/loop/upload.h"
#include "runner/models/workload.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

class CommitGate;
class DeviceStream;
class GradReducer;
class InjectedFaults;
class ProcessGroup;

struct StepOutcome {
  std::vector<StepReport> reports;  // of this and earlier steps, in order: those that are known
  int64_t samples = 0;              // of this step's global batch
  int stop_code = 0;                // 130 or 143 when any rank was asked to stop; acted on by all at this step
  bool leave_together = false;      // any rank was asked to: all leave the group after this step
};

class TrainStep {
 public:
  struct Parts {
    const TrainingOptions& training;  // of the phase
    Workload& workload;
    TrainingState& state;
    ProcessGroup& group;
    GradReducer& reducer;
    BatchSource& source;  // of the training split
    BatchQueue& queue;
    PhaseClock& clock;
    CommitGate& gate;
    DeviceStream& stream;
    InjectedFaults& faults;
    at::Device device;
    Precision precision;
    PhaseSteps steps;
    std::function<bool()> is_cut = [] { return false; };  // the group
    // Called before the state's tensors change (buffers: before the forward; all others: before the commit).
    std::function<void()> before_change = [] {};
  };
  explicit TrainStep(const Parts& parts);
  ~TrainStep();

  // Runs step `state.counters.step`, commits it and advances the counter.
  StepOutcome run(const StepRequests& requests);

  // Reports of all steps not yet reported; every rank calls it at the same step. Afterwards the state is that of
  // `state.counters.step`, on the device too.
  std::vector<StepReport> flush();

  // After a step threw: what was committed stays, the counter says how far, and the reports of those steps come back.
  // The commit gate is shut by then. Needs no peer.
  std::vector<StepReport> abandon();

 private:
  struct Pending;
  struct Planned;
  struct Fetched;

  [[nodiscard]] Planned plan(int64_t step, const DataPlace& place);
  Fetched fetch_next();
  [[nodiscard]] std::vector<double> scales(const std::vector<double>& totals, double loss_scale) const;
  std::vector<at::Tensor> forward(const DeviceBatch& batch);
  void begin_upload(const Fetched& fetched, size_t micro_batch);
  [[nodiscard]] at::Tensor reach_every_parameter() const;
  void zero_gradients();
  [[nodiscard]] std::vector<StepReport> report_up_to(int64_t step);
  void report_oldest();

  Parts parts_;
  Upload upload_;
  const std::vector<LossTerm>& terms_;
  int64_t first_step_;     // of this group
  DataPlace first_place_;  // … and where it began in the data
  int64_t gate_at_first_;  // the gate's count then
  LrScheduleOptions schedule_;
  std::deque<Planned> coming_;            // steps whose batches are wanted and not yet taken
  int64_t unplanned_step_ = first_step_;  // the first step after them
  DataPlace unplanned_place_ = first_place_;
  std::unique_ptr<Fetched> next_;  // the step to run
  std::vector<double> totals_;     // its weights over all ranks, by loss term; empty: not summed yet
  std::deque<Pending> pending_;
  std::vector<StepReport> known_;  // counted, and not yet handed out
  bool is_abandoned_ = false;
};

}  // namespace lockstep
