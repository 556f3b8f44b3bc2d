// RunWriter: what rank 0 of a run makes durable: the lock of the run's folder, lines, the files of evaluations,
// checkpoints.
//
// Role: beside the Trainer, which says when. It is open on rank 0 alone; elsewhere its functions do nothing.
// A volume that is full or not reachable does not end a run whose state is in memory: each checkpoint tries the volume
// again, and the run fails when the last checkpoint cannot be written.
// Threads: the training thread; the writing is CheckpointWriter's thread's. Errors: leaves the group (leave_group) when
// it is cut while this waits for the volume.
#pragma once

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
#include "runner/loop/trainer_parts.h"
#include "runner/loop/training_state.h"

namespace lockstep {

class RunWriter {
 public:
  // Both outlive it.
  RunWriter(const TrainerParts& parts, TrainingState& state);
  ~RunWriter();

  [[nodiscard]] RunIdentity identity() const;

  // A new group: its generation, as checkpoints are stamped, and its size. from_live_rank: the state may be in no
  // checkpoint yet.
  void begin_generation(uint64_t generation, int world_size, bool from_live_rank);
  // Rank 0: takes the folder and opens the run's files. Without room, or without its volume, a run whose state comes
  // from a live rank goes on in memory: ok. Errors: kConflict (another run has the folder), the volume's.
  Status open(const StopToken& stop);
  // This rank is not rank 0 any more.
  void close(const StopToken& stop);
  [[nodiscard]] bool is_open() const { return writer_ != nullptr; }

  // Writes what the journal holds and the folder lacks: steps and an evaluation that another rank 0 may not have
  // written.
  void write_what_was_missed(const StopToken& stop);
  // The workload's files of an evaluation, made here of the state as it is.
  void stage_outputs(const EvaluationNote& note, std::map<std::string, std::string> parts, const StopToken& stop);
  // The state as it is.
  void stage_checkpoint(bool is_best, const StopToken& stop);
  // State tensors are about to change; the device may still be copying them.
  void before_change();
  // Tells the reporter what has been written.
  void report();
  // Waits until all that was staged is durable. When the checkpoint of this step could not be written, it is tried once
  // more.
  void make_durable(const StopToken& stop);
  // The same, whatever comes of it; for the end of a process whose device is broken.
  void wait();

  // Was the state of this step staged here, or read from a checkpoint?
  [[nodiscard]] bool has_checkpoint_of(int64_t step) const { return checkpointed_step_ == step; }
  // Of the newest checkpoint or of the folder; empty when all is durable.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  [[nodiscard]] CheckpointStamp stamp() const { return {state_.counters.run, generation_}; }
  Status open_folder(const StopToken& stop);
  bool has_folder(const StopToken& stop);
  [[nodiscard]] CheckpointContent checkpoint_tensors() const;
  [[nodiscard]] CheckpointState checkpoint_state(bool is_best) const;
  void write_state(bool is_best, const StopToken& stop);
  void wait_for(const StopToken& stop, CheckpointWriter::Writes writes = CheckpointWriter::Writes::kAll);

  const TrainerParts& parts_;
  TrainingState& state_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::optional<FileLock> lock_;  // of the folder
  uint64_t generation_ = 0;
  int world_size_ = 1;
  bool from_live_rank_ = false;
  bool lacks_folder_ = false;       // it could not be used when the group formed
  int64_t opened_at_step_ = -1;     // the run's files hold nothing later than this; -1 = not open
  int64_t checkpointed_step_ = -1;  // staged here last, or read
  int64_t best_step_ = -1;          // whose checkpoint was staged as the best, last
  int64_t outputs_step_ = -1;       // of the evaluation whose files were staged here last
  double stage_seconds_ = 0.0;
  std::string problem_;
};

}  // namespace lockstep
