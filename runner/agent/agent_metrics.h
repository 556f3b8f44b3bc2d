// The agent's own metric families. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runner/agent/job_record.h"
#include "runner/contract/messages.h"
#include "runner/contract/run_status.h"

namespace lockstep {

// Numbers of restart decisions, by level ("process", "pod", "gang") and reason.
using DecisionCounts = std::map<std::pair<std::string, std::string>, int64_t>;

struct AgentFigures {
  const RunStatus& status;
  int workers_alive = 0;
  DecisionCounts restarts;
  DecisionCounts gave_up;                     // node 0: those of all nodes
  const JobRecord* job = nullptr;             // node 0 exports the job's metrics; null elsewhere
  std::vector<GoodputPart> goodput_counters;  // node 0
};

std::vector<MetricFamily> agent_metrics(const AgentFigures& figures);

}  // namespace lockstep
