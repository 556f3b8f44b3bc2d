// The decisions and the output of `lockstep bench scaling`. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/cli/demo_data.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"

namespace lockstep {

inline constexpr int kScalingRanksMax = 4096;

// "1,2,4", in rising order, each once. kInvalid: what was found and expected.
Result<std::vector<int>> parse_ranks(const std::string& text);

// Powers of two up to the number of GPUs; without a GPU, up to the number of cores.
std::vector<int> default_ranks(int gpus, int cores);

// What the user chose for the whole measurement.
struct ScalingOptions {
  std::vector<int> ranks;
  int64_t warmup_steps = 20;  // steps at the beginning of each run that are not measured
  int64_t steps = 100;        // steps that are measured
};

// Refuses flags that say how many ranks run where, or that leave nothing to measure. kInvalid.
Status check_bench_flags(const RunConfig& config);

// The names of the given flags that the bench sets itself, for a remark: "--num_epochs, --train_dir"; empty: none.
std::string flags_without_effect(const RunConfig& config);

// How each run differs from the user's own flags.
struct ScalingRun {
  int ranks = 1;
  std::string folder;  // of the run; holds a '/'
  bool on_cpu = false;
  std::optional<int> threads;  // per rank; nullopt: the run's own default
};
// The arguments of `lockstep run`: the user's, then the bench's own, which win.
std::vector<std::string> arguments_of(const ScalingRun& run, const ScalingOptions& options, const RunWithData& user,
                                      const WorkloadFlags& workload);

// On the CPU every rank of every run gets the same number of cores, just as every rank on GPUs gets one GPU. If one
// rank had all cores, it would already use the whole machine, and more ranks could not be faster.
int threads_per_rank(int cores, const std::vector<int>& ranks);

struct ScalingRow {
  int ranks = 1;
  double samples_per_second = 0.0;
  double speedup = 1.0;     // over the first row
  double efficiency = 1.0;  // speedup × (ranks of the first row) / ranks; 1 is perfect
  bool shares_cores = false;
};
ScalingRow scaling_row(int ranks, double samples_per_second, const std::optional<ScalingRow>& first);

std::string scaling_heading();
std::string scaling_line(const ScalingRow& row);

}  // namespace lockstep
