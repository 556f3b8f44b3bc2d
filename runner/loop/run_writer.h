// RunWriter: everything that rank 0 writes into the run's folder: the lock, the lines of metrics and logs, the files of
// evaluations, checkpoints.
//
// Role: the Trainer decides when to write, RunWriter writes. It is open only on rank 0; elsewhere its functions do
// nothing. A volume that is full or not reachable does not end a run whose state is in memory: each checkpoint tries
// the volume again, and the run fails only when the last checkpoint cannot be written.
// Threads: the training thread; CheckpointWriter's thread does the writing. Errors: leaves the group (leave_group) when
// it is cut while this waits for the volume.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runner/base/file_lock.h"
#include "runner/base/result.h"
#include "runner/checkpoint/writer.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/loop/stop_token.h"
#include "runner/loop/trainer_context.h"
#include "runner/loop/training_state.h"

namespace lockstep {

class RunWriter {
 public:
  // Both outlive it.
  RunWriter(const TrainerContext& context, TrainingState& state);
  ~RunWriter();

  [[nodiscard]] RunIdentity identity() const;

  // A new group has formed. generation: the one that checkpoints are stamped with. from_live_rank: the state came from
  // a rank's memory, so it may be in no checkpoint yet.
  void begin_generation(uint64_t generation, int world_size, bool from_live_rank);
  // Rank 0: locks the folder and opens the run's files; once they are open, a new group waits neither for a write that
  // is in flight nor for the volume. When the folder cannot be used, and the state came from a live rank, it returns
  // ok, and the run goes on in memory. Errors: kConflict (another run uses the folder, or a newer rank 0 has written),
  // the volume's.
  Status open();
  // This rank is not rank 0 any more.
  void close(const StopToken& stop);
  [[nodiscard]] bool is_open() const { return writer_ != nullptr; }

  // Writes the steps and the evaluation of the journal that the folder lacks, because an earlier rank 0 ended before it
  // wrote them.
  void write_what_was_missed(const StopToken& stop);
  // Makes the workload's files of an evaluation from the present state and queues them for writing.
  void stage_outputs(const EvaluationNote& note, std::map<std::string, std::string> parts, const StopToken& stop);
  // Copies the present state and queues it for writing as a checkpoint.
  void stage_checkpoint(bool is_best, const StopToken& stop);
  // To be called before state tensors change: waits until the device has copied those of a staged checkpoint.
  void before_change();
  // Tells the reporter what has been written.
  void report();
  // Waits until everything staged is durable. When the checkpoint of this step could not be written, tries it once
  // more.
  void make_durable(const StopToken& stop);
  // Waits until everything staged is durable or has failed, or shows no progress for `patience`; for the end of a
  // process whose device is broken.
  void wait(std::chrono::seconds patience);

  // True when the state of this step was staged here, or was read from a checkpoint.
  [[nodiscard]] bool has_checkpoint_of(int64_t step) const { return checkpointed_step_ == step; }
  // Why the newest checkpoint could not be written or the folder could not be used; empty when all is durable.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  [[nodiscard]] CheckpointStamp stamp() const { return {state_.counters.run, generation_}; }
  Status lock_folder();
  Status open_folder();
  bool has_folder(const StopToken& stop);
  [[nodiscard]] CheckpointContent checkpoint_tensors() const;
  [[nodiscard]] CheckpointState checkpoint_state(bool is_best) const;
  void write_state(bool is_best, const StopToken& stop);
  void wait_for(const StopToken& stop, CheckpointWriter::Writes writes = CheckpointWriter::Writes::kAll);

  const TrainerContext& context_;
  const RankContext& rank_;  // context_.rank
  TrainingState& state_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::optional<FileLock> lock_;  // of the folder
  uint64_t generation_ = 0;
  int world_size_ = 1;
  bool from_live_rank_ = false;
  bool lacks_folder_ = false;       // the folder could not be used when the group formed, nor since
  int64_t opened_at_step_ = -1;     // the step at which the run's files were opened; -1: not yet, and nothing is staged
  int64_t checkpointed_step_ = -1;  // the step of the checkpoint that was staged here last, or read
  int64_t best_step_ = -1;          // the step of the checkpoint that was last staged as the best
  int64_t outputs_step_ = -1;       // the step of the evaluation whose files were staged here last
  struct Unstaged {
    EvaluationNote note;
    std::map<std::string, std::string> parts;
  };
  std::optional<Unstaged> unstaged_;  // the newest evaluation, until all its files are staged
  double stage_seconds_ = 0.0;
  std::string problem_;
};

}  // namespace lockstep
