// What a run wrote into its metrics.jsonl (telemetry/metrics_log.h), read back. Pure but for read_run_figures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct LoggedStep {
  int64_t step = 0;
  double loss = 0.0;    // not a number where the file has null
  int64_t samples = 0;  // since the line before
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

// Lines that are none of ours, such as a torn last one, are left out.
RunFigures parse_run_figures(std::string_view text);

// Of a run's folder. kNotFound, kUnavailable: as read_file's.
Result<RunFigures> read_run_figures(const std::string& folder);

struct Throughput {
  int64_t samples = 0;
  double seconds = 0.0;
  [[nodiscard]] double samples_per_second() const { return static_cast<double>(samples) / seconds; }
};
// From the first line at or after `warmup_steps` to the last one. kNotFound: no two such lines, or no time between
// them.
Result<Throughput> throughput_after(const RunFigures& figures, int64_t warmup_steps);

}  // namespace lockstep
