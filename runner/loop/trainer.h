// Trainer: the training loop of one worker, over as many generations as it lives through.
//
// Role: architecture §3's "sync state → train". What belongs to a generation (group, store, reducer) is made in
// run_generation and dropped at its end; what a lost peer must not cost (parameters, optimizer, counters) lives here.
// Threads: the training thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runner/base/file_lock.h"
#include "runner/base/file_system.h"
#include "runner/config/run_config.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/process_group.h"
#include "runner/dist/store_handle.h"
#include "runner/loop/device.h"
#include "runner/loop/reporter.h"
#include "runner/loop/state_sync.h"
#include "runner/loop/stop_signals.h"
#include "runner/loop/training_state.h"
#include "runner/models/workload.h"

namespace lockstep {

class CheckpointWriter;

// How a generation ended for this rank.
struct Outcome {
  ExitCode code = ExitCode::kDone;
  std::string message;  // why, when code is neither kDone nor a stop
  [[nodiscard]] bool peer_lost() const { return code == ExitCode::kPeerLost; }
};

class Trainer {
 public:
  // Everything referred to outlives the trainer.
  struct Parts {
    const RunConfig& config;
    Workload& workload;
    FileSystem& fs;
    StopSignals& signals;
    PhaseClock& clock;
    Reporter& reporter;
    at::Device device;
    PrecisionChoice precision;
    int threads = 1;
    std::string folder;  // of the run
    std::string host_name;
    std::string job_uid;
    std::string resume_command;
    std::string nccl_variables;  // for the start table
  };
  explicit Trainer(const Parts& parts);
  ~Trainer();

  // Forms the state, trains to the end, a stop or a fault. Never throws.
  Outcome run_generation(ProcessGroup& group, const StoreHandle& store, uint64_t generation);

  [[nodiscard]] int64_t step() const { return state_.counters.step; }

 private:
  struct Generation;  // what lives for one generation

  Outcome run_generation_or_throw(ProcessGroup& group, const StoreHandle& store, uint64_t generation);
  Outcome prepare(Generation& generation);
  void announce(const Generation& generation);
  Outcome train(Generation& generation);
  void take(const std::vector<StepReport>& reports);
  Status open_outputs(Generation& generation);
  int evaluate(Generation& generation);
  void checkpoint(Generation& generation, bool is_best);
  void report_checkpoints();
  void make_durable(Generation& generation);
  Outcome finish(Generation& generation, int stop_code);
  [[nodiscard]] bool is_time_to_evaluate(const Generation& generation) const;
  [[nodiscard]] bool is_finished(const Generation& generation) const;
  [[nodiscard]] bool is_out_of_patience() const;
  Outcome check_drift(Generation& generation);

  Parts parts_;
  TrainingState state_;
  std::unique_ptr<CheckpointWriter> writer_;  // rank 0
  int64_t checkpointed_step_ = -1;            // staged last
  double stage_seconds_ = 0.0;
  std::optional<FileLock> lock_;       // rank 0: of the output folder
  std::optional<Outcome> not_finite_;  // too many skipped steps: the same on all ranks
  std::string write_problem_;          // of the newest checkpoint, empty when it is durable
  bool improved_ = false;              // at the last evaluation
};

}  // namespace lockstep
