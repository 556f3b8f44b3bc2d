// Evaluation over all ranks: exact shards, (sum, count) added up in fp64, the same figures for every world size.
// The wait for the other ranks' figures is Phase::kWaiting on `clock`, so that a late rank is told from those that it
// keeps waiting.
// It may take minutes. A rank that is asked to stop, or to leave with the others, ends its share within one chunk and
// says so in the reduction. Then no rank has figures, and all know of the request (JointWork). A rank whose group is
// cut throws (leave_group). Threads: the training thread; collective. Errors: throws; RunFault (kData) when a batch
// cannot be fetched.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/loop/stop_token.h"
#include "runner/models/workload.h"

namespace lockstep {

class InjectedFaults;
class PhaseClock;
class ProcessGroup;

struct EvaluationOutcome {
  bool is_complete = false;   // on all ranks; otherwise there are no figures
  EvaluationMetrics metrics;  // the workload's figures of the sums
  StepRequests requests;      // that any rank has met meanwhile
  // Names, and on rank 0 the bytes of all ranks (EvaluationShard::give_part).
  std::map<std::string, std::string> parts;
};

// What an evaluation works with; all outlive the call.
struct EvaluationParts {
  uint64_t seed = 0;
  int64_t samples_at_once = 1;  // as EvaluationShard's
  at::Device device = at::Device(at::kCPU);
  Precision precision = Precision::kFp32;
  const StopToken& stop;
  PhaseClock& clock;
  InjectedFaults& faults;
};

EvaluationOutcome evaluate_on_all_ranks(Workload& workload, ProcessGroup& group, const EvaluationParts& parts);

}  // namespace lockstep
