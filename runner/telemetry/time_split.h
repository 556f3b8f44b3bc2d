// The time split of the end summary: how the wall-clock time was spent, what limited the run, and the flag that would
// help. Pure.
#pragma once

#include <string>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

struct TimeSplitRow {
  Phase phase = Phase::kOther;
  double seconds = 0.0;
  double percent = 0.0;  // in tenths; the rows' percents add up to exactly 100.0
};

// Longest first; phases that took no time are left out. Seconds add up to seconds.total().
std::vector<TimeSplitRow> time_split(const PhaseSeconds& seconds);

struct RunShape {
  int world_size = 1;
  bool on_gpu = false;
  Precision precision = Precision::kFp32;
};

// One sentence: what limited the run (the largest of computing, data, gradient exchange, …), its share, and the flag
// that would help. "no time was measured" for an empty clock.
std::string what_bounded(const PhaseSeconds& seconds, const RunShape& shape);

}  // namespace lockstep
