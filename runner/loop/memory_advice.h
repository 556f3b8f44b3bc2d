// Advice after an out-of-memory error in a step: tries smaller batches and names the flags for one that fits.
// Threads: the training thread. Makes no collectives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runner/config/run_config.h"
#include "runner/data/batch_source.h"
#include "runner/loop/batch_math.h"
#include "runner/loop/training_state.h"
#include "runner/models/workload.h"

namespace lockstep {

// Tries half of the micro-batch, a quarter, …, 1, and returns the first whose forward and backward fit into memory
// beside the state and its gradients, in the unit of BatchShape::micro_batch_max. nullopt: not even the smallest fits,
// or a trial failed for another reason. To be called after reducer and step were destroyed. Leaves no gradients.
std::optional<int64_t> micro_batch_that_fits(Workload& workload, const TrainingState& state, BatchSource& source,
                                             uint64_t seed, at::Device device, Precision precision);

// A sentence that names the flags. batch_flag: WorkloadInfo::batch_flag. `fits`: what micro_batch_that_fits returned.
// of_workload: Workload::memory_advice(). Pure.
std::string memory_advice(const BatchShape& batch, const TrainingOptions& training, std::optional<int64_t> fits,
                          const std::string& batch_flag, const std::string& of_workload);

}  // namespace lockstep
