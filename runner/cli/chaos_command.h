// `lockstep chaos kill-rank|stop-rank|kill-agent|partition|fill-disk [FOLDER]`: breaks a run on this machine on
// purpose, and says how long it took to go on. Exit codes: 0, 2 (usage, no such run, rank or node), 11 (it did not go
// on in time).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/cli/command_shape.h"

namespace lockstep {

// `args`: what stands after `lockstep chaos`.
int chaos_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

CommandShape chaos_shape();

// What a recovery (contract/run_status.h, as JSON) cost since `hit_ns`, in lines; CLOCK_MONOTONIC. Pure.
std::string describe_recovery(const Json& recovery, int64_t hit_ns);

}  // namespace lockstep
