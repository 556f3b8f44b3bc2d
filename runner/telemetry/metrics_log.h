// MetricsLog: metrics.jsonl, one JSON line per logged step and one per evaluation, never two for one step.
//
// Role: the run's figures as a file that a person or a script reads. A resumed run cuts the file back to the step it
// resumes from, so the lines of steps that are redone are not there twice.
// Threads: one thread. Ownership: owns the file descriptor; only rank 0 has a log.
// Errors: see append_file.h; training goes on without the lines that were lost.
// Units: `time` is Unix seconds; a figure that is not finite is null.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/telemetry/append_file.h"

namespace lockstep {

struct StepRecord {
  int64_t step = 0;  // steps done, from 1
  int64_t epoch = 0;
  double loss = 0.0;
  std::vector<std::pair<std::string, double>> terms;  // of the loss, where there are several: "loss_<name>"
  double lr = 0.0;
  double grad_norm = 0.0;
  double samples_per_second = 0.0;
  int64_t samples = 0;  // trained on since the line before, or since this process began
  double time = 0.0;
};

struct EvaluationRecord {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<std::pair<std::string, double>> metrics;
  double time = 0.0;
};

class MetricsLog {
 public:
  // `resume_step`: steps done by the checkpoint that the run continues from; lines after it are removed, and so is a
  // torn last line. 0 begins the file anew. It is a new file under the old name at each opening: an old rank 0 that was
  // cut off goes on writing to the one that it opened. The lines are parsed from the end, down to the first one of a
  // step before `resume_step`: those before it were written by this class. A file above bytes_max is not copied at
  // every start: it is moved to PATH.1, .2, … and a new one is begun.
  static Result<MetricsLog> open(const std::string& path, int64_t resume_step, uint64_t bytes_max = kLineFileBytesMax);

  // A record of a step that already has its line is left out: ok.
  Status append(const StepRecord& record);
  Status append(const EvaluationRecord& record);
  // The same for a line with other figures.
  enum class Kind { kStep, kEvaluation };
  Status append_line(int64_t step, Kind kind, const OrderedJson& figures);

  [[nodiscard]] bool has_step(int64_t step) const { return step <= last_step_; }
  [[nodiscard]] bool has_evaluation(int64_t step) const { return step <= last_evaluation_step_; }

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  // Where a file that was too large is now; empty: there was none.
  [[nodiscard]] const std::string& moved_to() const { return moved_to_; }

 private:
  explicit MetricsLog(AppendFile file) : file_(std::move(file)) {}

  AppendFile file_;
  std::string moved_to_;
  // Of the lines that were parsed or appended.
  int64_t last_step_ = -1;
  int64_t last_evaluation_step_ = -1;
};

}  // namespace lockstep
