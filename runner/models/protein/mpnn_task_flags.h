// What the command line knows of `lockstep protein score` and `lockstep protein design`. Links no torch. Threads: plain
// values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

enum class DesignFormat { kFasta, kJsonLines };

// Of both tasks. The texts are read against each structure (mpnn_positions.h).
struct MpnnTaskOptions {
  std::string design_chains;    // empty: all
  std::string fixed_positions;  // of those chains
  uint64_t seed = 37;

  // score
  int64_t num_orders = 1;
  bool residues = false;

  // design
  std::string temperature = "0.1";  // one or more
  int64_t num_sequences = 1;
  int64_t batch = 8;
  std::string tied_positions;
  std::string omit_aa = "X";
  std::string bias;
  DesignFormat format = DesignFormat::kFasta;
};

WorkloadTask mpnn_score_task();
WorkloadTask mpnn_design_task();

// Of --temperature: at least one, each above 0. Error: kInvalid.
Result<std::vector<double>> temperatures_of(const MpnnTaskOptions& options);

// Of --bias: amino acids in one letter and what is added to their logits. Error: kInvalid.
Result<std::vector<std::pair<char, double>>> biases_of(const MpnnTaskOptions& options);

// RunConfig::task.options of these tasks.
const MpnnTaskOptions& mpnn_task_options(const RunConfig& config);
MpnnTaskOptions& mpnn_task_options(RunConfig& config);

}  // namespace lockstep
