// WandbLog: the run's figures under the names that people know from Weights & Biases, in a folder of the run:
//
//   wandb/run.json       project, name, entity, an id that a resumed run keeps, and all flags
//   wandb/metrics.jsonl  a line per logged step and per evaluation: "step", then what is to be logged at that step
//
// Role: nothing is sent from here, so that a run needs no network and no account; scripts/wandb_sync.py sends it, while
// the run goes on or afterwards. Threads, ownership, errors, units: as MetricsLog.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/telemetry/metrics_log.h"

namespace lockstep {

inline constexpr const char* kWandbFolder = "wandb";

class WandbLog {
 public:
  struct Options {
    std::string run_folder;
    int64_t resume_step = 0;    // as MetricsLog::open
    int64_t resume_epochs = 0;  // completed at that step
    double time = 0.0;          // now
  };
  static Result<WandbLog> open(FileSystem& fs, const RunConfig& config, const Options& options);

  // A record of a step that already has its line is left out: ok.
  Status append(const StepRecord& record);
  // The time of an epoch counts the evaluation before it.
  Status append(const EvaluationRecord& record);

 private:
  explicit WandbLog(MetricsLog log) : log_(std::move(log)) {}

  MetricsLog log_;
  double best_loss_ = 0.0;  // of the epochs so far; infinite before the first
  int64_t epochs_ = 0;      // at the last evaluation, or when this was opened
  double time_ = 0.0;       // then
  int64_t samples_ = 0;     // trained on since then
};

}  // namespace lockstep
