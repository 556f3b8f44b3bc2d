// `lockstep chaos kill-rank|stop-rank|kill-agent [FOLDER]`: kills or stops a worker or an agent of a run on this
// machine, by its pid in the agents' status, and prints how long the recovery took. Exit codes: 0, 2 (usage; no such
// run, rank or node), 11 (the run did not recover in time, or ended with another code than 0).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/cli/command_shape.h"

namespace lockstep {

// `args`: those after `lockstep chaos`.
int chaos_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

CommandShape chaos_shape();

// Lines with the parts of a recovery (contract/run_status.h, as JSON). hit_ns: time of the fault, CLOCK_MONOTONIC.
// Pure.
std::string describe_recovery(const Json& recovery, int64_t hit_ns);

}  // namespace lockstep
