// RunFolder: the files that rank 0 writes into the output folder beside the checkpoints: args.txt, log.txt,
// metrics.jsonl, TensorBoard events, the Weights & Biases log. (The checkpoint writer writes the workload's own files.)
// Threads: the training thread. Errors: opening returns an Error; later write errors are returned as lines to show, and
// training goes on. An old rank 0 that was cut off may still write to the same volume beside its successor: the
// successor has replaced the files by new ones, so the old rank's lines go into the replaced ones, which nobody reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/base/append_file.h"
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
    CheckpointStamp stamp;      // of this rank 0; temporary files are named after it
    int64_t resume_step = 0;    // lines of later steps are removed: these steps are done again
    int64_t resume_epochs = 0;  // epochs completed at resume_step
  };
  // `fs` outlives it.
  static Result<RunFolder> open(FileSystem& fs, const RunConfig& config, Workload& workload, const Options& options);

  // A sentence when something could not be written; empty otherwise.
  std::string record(const StepReport& report);
  // `log_line`: of log.txt; empty: none. A sentence for each file that could not be written. As the other, it writes
  // nothing when metrics.jsonl has the line already.
  std::vector<std::string> record(const EvaluationRecord& record, const std::string& log_line);
  [[nodiscard]] bool has_step(int64_t step) const { return log_.has_step(step); }
  [[nodiscard]] bool has_evaluation(int64_t step) const { return log_.has_evaluation(step); }

  [[nodiscard]] const std::string& path() const { return path_; }
  // A sentence when a file was too large and was moved away ("metrics.jsonl had more than …"); empty otherwise.
  [[nodiscard]] std::string remark() const;
  // Files written so far, for the end summary.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }
  void add_file(const std::string& name);

 private:
  RunFolder(std::string path, MetricsLog log) : path_(std::move(path)), log_(std::move(log)) {}
  std::string append_log_line(const std::string& line);

  std::string path_;
  MetricsLog log_;
  std::optional<AppendFile> log_txt_;  // nullopt when the workload writes no log.txt
  std::string log_txt_moved_to_;       // as MetricsLog::moved_to
  std::optional<EventWriter> events_;
  std::optional<WandbLog> wandb_;
  std::vector<std::string> files_;
};

}  // namespace lockstep
