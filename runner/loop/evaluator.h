// Evaluation over all ranks: exact shards, (sum, count) added up in fp64, the same figures for every world size.
// While a rank waits for the other ranks' figures, its phase on `clock` is Phase::kWaiting; so the one rank that is
// late can be told from those that wait for it.
// It may take minutes. A rank that is asked to stop, or to leave with the others, ends its share early (JointWork):
// then no rank has figures, and all obey the request. A rank whose group is cut throws (leave_group).
// Threads: the training thread; collective. Errors: throws; RunFault (kData) when a batch cannot be fetched.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runner/loop/rank_context.h"
#include "runner/loop/stop_token.h"

namespace lockstep {

class ProcessGroup;

struct EvaluationOutcome {
  bool is_complete = false;   // all ranks have completed their shares; otherwise there are no figures
  EvaluationMetrics metrics;  // Workload::figures of the sums over all ranks
  StepRequests requests;      // what any rank was asked to do meanwhile
  // The names given to EvaluationShard::give_part. On rank 0 with the bytes of all ranks, elsewhere with empty strings.
  std::map<std::string, std::string> parts;
};

// What an evaluation works with; all outlive the call.
struct EvaluationContext {
  const RankContext& rank;
  int64_t phase = 0;            // as EvaluationShard's
  int64_t samples_at_once = 1;  // as EvaluationShard's
  const StopToken& stop;
};

EvaluationOutcome evaluate_on_all_ranks(ProcessGroup& group, const EvaluationContext& context);

}  // namespace lockstep
