// MetricsLog: metrics.jsonl, one JSON line per logged step and one per evaluation.
//
// Role: the run's figures as a file for users and scripts. A resumed run removes the lines after the step that it
// resumes from, so that steps that are redone do not have two lines.
// Threads: one thread. Ownership: owns the file descriptor; only rank 0 has a log.
// Errors: see append_file.h; training goes on without the lines that were lost.
// Units: `time` is Unix seconds; a figure that is not finite is null.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/append_file.h"
#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/telemetry/step_report.h"

namespace lockstep {

struct EvaluationRecord {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<std::pair<std::string, double>> metrics;
  double time = 0.0;
};

class MetricsLog {
 public:
  // `resume_step`: steps done by the checkpoint that the run continues from. Lines after it are removed, and so is an
  // incomplete last line; 0 removes all lines. Each opening makes a new file under the old name, so that an old rank 0
  // that was cut off writes to the file that it opened and not to this one. Lines are parsed from the end, back to the
  // first of a step before `resume_step`; earlier lines are kept unread. A file larger than bytes_max would take too
  // long to copy at every start: it is moved to PATH.1, .2, …, and a new one is begun. `temporary`: as
  // AppendFile::replace. `fs` outlives the log.
  static Result<MetricsLog> open(FileSystem& fs, const std::string& path, int64_t resume_step,
                                 const std::string& temporary, uint64_t bytes_max = kLineFileBytesMax);

  // ok, and writes nothing, when the step already has a line.
  Status append(const StepReport& report);
  Status append(const EvaluationRecord& record);
  // The same for a line with these figures.
  enum class Kind { kStep, kEvaluation };
  Status append_line(int64_t step, Kind kind, const OrderedJson& figures);

  [[nodiscard]] bool has_step(int64_t step) const { return step <= last_step_; }
  [[nodiscard]] bool has_evaluation(int64_t step) const { return step <= last_evaluation_step_; }

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  // The new path of a file that was too large; empty: there was none.
  [[nodiscard]] const std::string& moved_to() const { return moved_to_; }

 private:
  explicit MetricsLog(AppendFile file) : file_(std::move(file)) {}

  AppendFile file_;
  std::string moved_to_;
  // The newest steps among the lines that were parsed or appended.
  int64_t last_step_ = -1;
  int64_t last_evaluation_step_ = -1;
};

}  // namespace lockstep
