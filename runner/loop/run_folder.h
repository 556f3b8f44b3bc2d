// RunFolder: what rank 0 leaves in the output folder beside the checkpoints: args.txt, log.txt, metrics.jsonl,
// TensorBoard events, what is for Weights & Biases. (The workload's own files are the checkpoint writer's.)
// Threads: the training thread. Errors: opening returns an Error; later write errors are returned as lines to show,
// training goes on. An old rank 0 that was cut off may live on beside its successor, on the same volume: its lines go
// into files that the successor has replaced.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/telemetry/append_file.h"
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

  // A sentence when something could not be written; empty otherwise.
  std::string record(const StepRecord& record);
  // `log_line`: of log.txt; empty: none. A sentence for each file that could not be written.
  std::vector<std::string> record(const EvaluationRecord& record, const std::string& log_line);
  [[nodiscard]] bool has_evaluation(int64_t step) const { return log_.has_evaluation(step); }

  [[nodiscard]] const std::string& path() const { return path_; }
  // What became of a file that was there before, for people; empty: nothing.
  [[nodiscard]] std::string remark() const;
  // Files written so far, for the end summary.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  void add_file(const std::string& name);

 private:
  RunFolder(std::string path, MetricsLog log) : path_(std::move(path)), log_(std::move(log)) {}
  std::string append_log_line(const std::string& line);

  std::string path_;
  MetricsLog log_;
  std::optional<AppendFile> log_txt_;  // none where the workload has no such lines
  std::string log_txt_moved_to_;       // as MetricsLog::moved_to
  std::optional<EventWriter> events_;
  std::optional<WandbLog> wandb_;
  std::vector<std::string> files_;
};

}  // namespace lockstep
