// Reads the figures that a run wrote into metrics.jsonl (telemetry/metrics_log.h). Pure, except read_run_figures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

struct LoggedStep {
  int64_t step = 0;
  double loss = 0.0;    // NaN when the file has null
  int64_t samples = 0;  // since the previous line
  double time = 0.0;    // Unix seconds
};

struct LoggedEvaluation {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<std::pair<std::string, double>> figures;  // in the file's order
};

struct RunFigures {
  std::vector<LoggedStep> steps;
  std::vector<LoggedEvaluation> evaluations;
};

// Invalid lines, such as an incomplete last one, are skipped.
RunFigures parse_run_figures(std::string_view text);

// Reads metrics.jsonl of a run's folder. Errors: those of reading the file.
Result<RunFigures> read_run_figures(FileSystem& fs, const std::string& folder);

// From the first line at or after `warmup_steps` to the last one. kNotFound: no two such lines, or no time between
// them.
Result<double> samples_per_second_after(const RunFigures& figures, int64_t warmup_steps);

}  // namespace lockstep
