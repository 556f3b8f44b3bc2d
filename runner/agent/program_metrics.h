// The metrics of one rank of the user's program, by the names that a worker's have (contract/metric_names.h). Pure.
// Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "runner/contract/messages.h"

namespace lockstep {

struct ProgramFigures {
  int rank = 0;
  int64_t step = 0;                                       // committed
  int64_t steps_of_process = 0;                           // made by this process
  double last_step_unix = 0.0;                            // seconds
  const Progress* progress = nullptr;                     // what is known of the whole run; null: nothing
  const std::map<std::string, double>* others = nullptr;  // further figures that the program has named; null: none
};

std::vector<MetricFamily> program_metrics(const ProgramFigures& figures);

}  // namespace lockstep
