// The start table: what a person chose for this run and what follows from it, in a terminal of 80 columns. With
// --verbose also the values of all other flags, which args.txt has in any case. Pure.
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
  const std::vector<TrainingPhase>& phases;
  int64_t steps_per_epoch = 1;
  int64_t total_steps = 0;
  std::string origin;
  std::string folder;
  std::string nccl_variables;  // "NCCL_DEBUG=INFO …", those that are set
};

// Label and value of each row; an empty label goes on with the row above.
std::vector<std::pair<std::string, std::string>> start_table_rows(const StartFacts& facts);

// The same rows, as Reporter::start_table prints them no wider than so many columns, but for a word that is wider and
// for the state and what holds a path, which are looked for in logs. A value gets at least half of the columns.
std::vector<std::pair<std::string, std::string>> wrapped_rows(
    const std::vector<std::pair<std::string, std::string>>& rows, size_t columns);

}  // namespace lockstep
