// Which node of a run of `lockstep launch` this agent is, where nothing says it: the machine that has the coordinator's
// address holds node 0, and node 0's agent gives the others their numbers. Threads: any; blocks.
#pragma once

#include <chrono>
#include <string>

#include "runner/base/result.h"
#include "runner/contract/coordination.h"

namespace lockstep {

// `greet`: this agent's, with kAnyNode. Of several agents on the coordinator's machine the first is node 0.
// kUnavailable: no answer within `patience`; kInvalid: the coordinator's refusal.
Result<int> find_node_number(const std::string& host, int port, const Greet& greet, std::chrono::seconds patience);

}  // namespace lockstep
