// AgentClient: the operator's requests to agents, over plain HTTP: GET /status?view=summary and POST /nodes to pod
// 0's, POST /coordinator to the others'.
//
// Threads: safe from all threads; calls block for at most kAgentTimeout.
// Errors: kUnavailable when the agent does not answer in time, kCorrupt for an answer that is not HTTP or is too long,
// kRetry for a status code other than 2xx.
#pragma once

#include <chrono>
#include <string>

#include "runner/base/result.h"

namespace lockstep::train {

inline constexpr std::chrono::seconds kAgentTimeout{2};  // of a whole exchange
// Of an answer: a summary of /status has about 150 bytes for each of at most 10,000 pods.
inline constexpr size_t kAgentBodyMax = size_t{2} << 20;

// `ip`: the pod's IPv4 or IPv6 address.
Result<std::string> read_agent_status(const std::string& ip, int port);
// POST /nodes, with the job's token: sets the number of agents (numNodes) that pod 0's coordinator aims for.
Status send_num_nodes(const std::string& ip, int port, const std::string& token, int num_nodes);
// POST /coordinator, with the job's token. `address`: the IP of pod 0.
Status send_coordinator_address(const std::string& ip, int port, const std::string& token, const std::string& address);

}  // namespace lockstep::train
