// WandbLog: writes the run's figures for Weights & Biases, with the names that are usual there, into the run's folder:
//
//   wandb/run.json       project, name, entity, an id that a resumed run keeps, and all flags
//   wandb/metrics.jsonl  a line per logged step and per evaluation: "step", then the figures to log at that step
//
// Role: nothing is sent from here, so that a run needs no network and no account; scripts/wandb_sync.py sends the
// files, during the run or afterwards. Threads, ownership, errors, units: as MetricsLog.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/telemetry/metrics_log.h"

namespace lockstep {

inline constexpr const char* kWandbFolder = "wandb";

class WandbLog {
 public:
  struct Options {
    std::string run_folder;
    CheckpointStamp stamp;      // of the run's writer; temporary files are named after it
    int64_t resume_step = 0;    // as MetricsLog::open
    int64_t resume_epochs = 0;  // epochs completed at resume_step
    double time = 0.0;          // now
  };
  static Result<WandbLog> open(FileSystem& fs, const RunConfig& config, const Options& options);

  // ok, and writes nothing, when the step already has a line.
  Status append(const StepReport& report);
  // The epoch's time runs from the end of the previous evaluation, so it includes this one.
  Status append(const EvaluationRecord& record);

 private:
  explicit WandbLog(MetricsLog log) : log_(std::move(log)) {}

  MetricsLog log_;
  double best_loss_ = 0.0;  // lowest epoch loss so far; infinite before the first
  int64_t epochs_ = 0;      // epochs completed at the last evaluation, or when the log was opened
  double time_ = 0.0;       // Unix seconds of that moment
  int64_t samples_ = 0;     // samples trained on since then
};

}  // namespace lockstep
