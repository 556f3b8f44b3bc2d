// RunFolder: what rank 0 leaves in the output folder beside the checkpoints: args.txt, log.txt, metrics.jsonl,
// TensorBoard events, what is for Weights & Biases, the workload's outputs.
// Threads: the training thread. Errors: opening returns an Error; later write errors are returned as lines to show,
// training goes on. An old rank 0 that was cut off may live on beside its successor, on the same volume: its lines of
// metrics.jsonl go into a file that the successor has replaced; the files of an evaluation are written by path, and
// only while no newer generation has written a checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/models/workload.h"
#include "runner/telemetry/metrics_log.h"
#include "runner/telemetry/tensorboard.h"
#include "runner/telemetry/wandb_log.h"

namespace lockstep {

class RunFolder {
 public:
  struct Options {
    std::string path;
    std::string host_name;
    int64_t resume_step = 0;    // lines of later steps are redone and therefore removed
    int64_t resume_epochs = 0;  // completed at that step
  };
  static Result<RunFolder> open(FileSystem& fs, const RunConfig& config, Workload& workload, const Options& options);

  // Who trains: the run, and the stamp that its checkpoints bear now. Nobody is looked for before it is said.
  struct Owner {
    RunIdentity run;
    CheckpointStamp stamp;
  };
  void set_owner(Owner owner) { owner_ = std::move(owner); }

  // A sentence when something could not be written; empty otherwise.
  std::string record(const StepRecord& record);
  // All that one evaluation leaves. A sentence for each thing that could not be written; that somebody else owns the
  // folder now is said once, until it is ours again.
  struct Evaluation {
    EvaluationRecord record;
    std::string log_line;              // of log.txt; empty: none
    std::vector<std::string> outputs;  // names of the workload's files
    std::function<OutputContent(const std::string& name)> content_of;
  };
  std::vector<std::string> record(const Evaluation& evaluation);
  [[nodiscard]] bool has_evaluation(int64_t step) const { return log_.has_evaluation(step); }

  [[nodiscard]] const std::string& path() const { return path_; }
  // What became of a file that was there before, for people; empty: nothing.
  [[nodiscard]] std::string remark() const;
  // Files written so far, for the end summary.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }

 private:
  RunFolder(FileSystem& fs, std::string path, MetricsLog log)
      : fs_(&fs), path_(std::move(path)), log_(std::move(log)) {}
  std::string record(const EvaluationRecord& record);
  std::string append_log_line(const std::string& line);
  std::string save(const std::string& name, const OutputContent& content);
  void remember(const std::string& file);

  FileSystem* fs_;
  std::string path_;
  MetricsLog log_;
  std::string log_moved_to_;  // log.txt, as MetricsLog::moved_to
  std::optional<EventWriter> events_;
  std::optional<WandbLog> wandb_;
  std::vector<std::string> files_;
  std::optional<Owner> owner_;
  std::optional<ErrorCode> said_;  // why nothing was written at the last evaluation, as it was said
};

}  // namespace lockstep
