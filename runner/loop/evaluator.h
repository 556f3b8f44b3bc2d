// Evaluation over all ranks: exact shards, (sum, count) added up in fp64, the same figures for every world size.
// The wait for the other ranks' figures is Phase::kWaiting on `clock`, so that a late rank is told from those that it
// keeps waiting.
// Threads: the training thread; collective.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runner/models/workload.h"

namespace lockstep {

class PhaseClock;
class ProcessGroup;
class StopSignals;

struct EvaluationFigures {
  std::vector<std::pair<std::string, double>> metrics;  // means, in the workload's order; 0 for one without samples
  int stop_code = 0;                                    // 130 or 143 when any rank was asked to stop meanwhile
};

EvaluationFigures evaluate_on_all_ranks(Workload& workload, ProcessGroup& group, uint64_t seed,
                                        const StopSignals& signals, PhaseClock& clock);

}  // namespace lockstep
