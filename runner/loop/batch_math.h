// Batch arithmetic: how a global batch is spread over ranks and micro-batches. Pure.
//
// The global batch belongs to the run, not to the machines: it is fixed at the first start, written into the
// checkpoint, and does not change when fewer or more ranks share it. A micro-batch never exceeds that of the first
// start; fewer ranks accumulate more micro-batches instead.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/data/sampler.h"

namespace lockstep {

// Fixed at the first start of a run, by the number of ranks asked for, even if the run starts with fewer.
struct BatchShape {
  int64_t global_batch = 0;     // samples
  int64_t micro_batch_max = 0;  // most that a rank computes in one forward: samples, or their cost (BatchSource::cost)
  int declared_world_size = 1;  // for --lr_scaling
};

// Errors (kInvalid): a total batch smaller than the world size (both named).
Result<BatchShape> batch_shape(const TrainingOptions& training, int declared_world_size);

// The micro-batches of `rank`: consecutive slots of a global batch whose slots have these costs. Always at least one
// range; an empty share is one empty range.
std::vector<SlotRange> micro_batches_of_rank(const BatchShape& shape, std::span<const int64_t> costs, int rank,
                                             int world_size);

// Micro-batches per step on the rank that has the most.
int64_t accumulation_steps(const BatchShape& shape, int world_size);

}  // namespace lockstep
