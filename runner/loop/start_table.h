// The start table: the flags that were given for this run and what follows from them, for a terminal of 80 columns.
// With --verbose also the values of all other flags, which are always in args.txt. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runner/dist/process_group.h"
#include "runner/loop/batch_math.h"
#include "runner/loop/rank_context.h"

namespace lockstep {

struct StartFacts {
  const RankContext& rank;
  const GroupOptions& group;
  std::string launched_by;  // as to_string(WorldSource)
  bool solo = false;
  BatchShape batch;
  int threads = 1;
  const std::vector<TrainingPhase>& phases;
  int64_t steps_per_epoch = 1;
  int64_t total_steps = 0;
  std::string origin;
  std::string folder;
  std::string nccl_variables;  // "NCCL_DEBUG=INFO …", those that are set
};

inline constexpr size_t kTerminalColumns = 80;  // of the start table and the end summary

// Label and value of each row; an empty label continues the row above.
std::vector<std::pair<std::string, std::string>> start_table_rows(const StartFacts& facts);

// Wraps the rows so that Reporter::start_table prints lines of at most `columns` columns. Not wrapped: a word that is
// wider, the state's row, and values that hold a path, because people search logs for them. A value gets at least half
// of the columns.
std::vector<std::pair<std::string, std::string>> wrapped_rows(
    const std::vector<std::pair<std::string, std::string>>& rows, size_t columns);

}  // namespace lockstep
