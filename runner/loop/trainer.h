// Trainer: the training loop of one worker, over all generations that it takes part in.
//
// Role: synchronizes the state and trains. What belongs to a generation (group, store, reducer) is made in
// run_generation and dropped at its end. What must survive the loss of a peer (parameters, optimizer, counters) lives
// here.
// Threads: the training thread.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runner/config/run_config.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/process_group.h"
#include "runner/dist/store_handle.h"
#include "runner/kernels/commit_gate.h"
#include "runner/link/agent_link.h"
#include "runner/loop/batch_queue.h"
#include "runner/loop/device.h"
#include "runner/loop/phases.h"
#include "runner/loop/run_writer.h"
#include "runner/loop/state_sync.h"
#include "runner/loop/stop_token.h"
#include "runner/loop/trainer_context.h"
#include "runner/loop/training_state.h"
#include "runner/loop/upload.h"
#include "runner/models/workload.h"

namespace lockstep {

// How a generation ended for this rank.
struct Outcome {
  ExitCode code = ExitCode::kDone;
  std::string message;  // why, when code is neither kDone nor a stop
  // Why this rank left the group: "PeerLost", "TimedOut", "Cut" or "Regroup". Not empty: its state is that of the last
  // commit, and it waits for the next group. Empty: it ends with `code`.
  std::string wait_reason;
};

class Trainer {
 public:
  using Context = TrainerContext;
  explicit Trainer(const Context& context);
  ~Trainer();

  // Brings all ranks to one state (sync_state), then trains until the end, a stop or a fault. Never throws. Afterwards
  // the group may be dropped. `formed_ns`: when the group was formed (CLOCK_MONOTONIC), for the agent's report of a
  // recovery.
  Outcome run_generation(ProcessGroup& group, const StoreHandle& store, int64_t formed_ns);

  // For a stop that comes while there is no group: a rank that had the run's folder open writes its state as a
  // checkpoint, unless that is written already.
  Outcome stop_between_groups(int stop_code);

  // Returns when every write that rank 0 has begun is durable or has failed, or shows no progress for `patience`.
  void wait_for_writes(std::chrono::seconds patience) { writer_.wait(patience); }

  [[nodiscard]] int64_t step() const { return state_.counters.step; }
  // Shut before a device's communicator is aborted; see kernels/commit_gate.h.
  [[nodiscard]] CommitGate& gate() { return gate_; }

 private:
  struct Generation;  // what lives for one generation

  Outcome run_generation_or_throw(Generation& generation);
  Outcome after_fault(Generation& generation, const std::exception& exception);
  std::string advice_on_memory(Generation& generation);
  Outcome prepare(Generation& generation);
  Outcome lost_or_failed(const Generation& generation, const Failure& failure) const;
  void announce(const Generation& generation);
  void set_plan(const Generation& generation);
  Outcome train(Generation& generation, StepRequests asked);
  void take(const std::vector<StepReport>& reports);
  [[nodiscard]] bool has_unwritten_best() const;
  void report_resumed(Generation& generation);
  [[nodiscard]] StopToken stop_token(uint64_t generation) const;
  void begin_steps(Generation& generation);
  StepRequests enter_phase(Generation& generation, int64_t phase);
  StepRequests change_phase(Generation& generation);
  StepRequests evaluate(Generation& generation);
  void record_evaluation(const Generation& generation, EvaluationNote note);
  void checkpoint(Generation& generation, bool is_best);
  Outcome leave_together(Generation& generation);
  Outcome finish(Generation& generation, int stop_code);
  [[nodiscard]] std::string needed_to_continue() const;
  void report_end(int stop_code);
  [[nodiscard]] int64_t num_epochs(const Generation& g) const;
  [[nodiscard]] bool is_last_phase() const { return state_.counters.phase + 1 == std::ssize(phases_); }
  [[nodiscard]] bool is_time_to_evaluate(const Generation& generation) const;
  [[nodiscard]] bool is_finished(const Generation& generation) const;
  [[nodiscard]] bool is_out_of_patience() const;
  Outcome check_drift(Generation& generation);

  Context context_;
  const RankContext& rank_;  // context_.rank
  std::vector<TrainingPhase> phases_;
  TrainingState state_;
  Upload upload_;
  CommitGate gate_;
  RunWriter writer_;
  BatchQueue queue_;
  bool has_synced_ = false;
  bool is_rank_zero_ = false;                   // in the newest group whose state was synced
  int64_t entered_phase_ = -1;                  // the phase that the workload is prepared for; -1: none
  std::optional<SyncResult> unreported_start_;  // rank 0: what the run started from, until the start table is printed
  std::optional<Outcome> not_finite_;  // set after more than --max_skipped_steps skipped steps, on all ranks alike
};

}  // namespace lockstep
