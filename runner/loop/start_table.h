// The start table: every effective value of a run, for the person who started it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/dist/process_group.h"
#include "runner/loop/batch_math.h"
#include "runner/loop/device.h"
#include "runner/models/workload.h"

namespace lockstep {

struct StartFacts {
  const RunConfig& config;
  const Workload& workload;
  const GroupOptions& group;
  bool solo = false;
  BatchShape batch;
  const PrecisionChoice& precision;
  int threads = 1;
  int64_t steps_per_epoch = 1;
  int64_t total_steps = 0;
  std::string origin;
  std::string folder;
  std::string nccl_variables;  // "NCCL_DEBUG=INFO …", those that are set
};

// Label and value of each row.
std::vector<std::pair<std::string, std::string>> start_table_rows(const StartFacts& facts);

}  // namespace lockstep
