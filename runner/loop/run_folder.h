// RunFolder: what rank 0 leaves in the output folder beside the checkpoints: args.txt, log.txt, metrics.jsonl,
// TensorBoard events, the guide's weight files.
// Threads: the training thread. Errors: opening returns an Error; later write errors are returned as lines to show,
// training goes on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/telemetry/metrics_log.h"
#include "runner/telemetry/tensorboard.h"

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

  // Each returns a sentence when something could not be written; empty otherwise.
  std::string record(const StepRecord& record);
  std::string record(const EvaluationRecord& record);
  [[nodiscard]] bool has_evaluation(int64_t step) const { return log_.has_evaluation(step); }
  std::string append_log_line(const std::string& line);
  std::string save_reference_weights(const std::string& file, const NamedTensors& model);

  [[nodiscard]] const std::string& path() const { return path_; }
  // What became of a file that was there before, for people; empty: nothing.
  [[nodiscard]] std::string remark() const;
  // Files written so far, for the end summary.
  [[nodiscard]] const std::vector<std::string>& files() const { return files_; }

 private:
  RunFolder(FileSystem& fs, std::string path, MetricsLog log)
      : fs_(&fs), path_(std::move(path)), log_(std::move(log)) {}

  FileSystem* fs_;
  std::string path_;
  MetricsLog log_;
  std::optional<EventWriter> events_;
  std::vector<std::string> files_;
};

}  // namespace lockstep
