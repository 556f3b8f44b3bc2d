// Batch arithmetic: how a global batch is spread over ranks and micro-batches. Pure.
//
// The global batch belongs to the run, not to the machines: it is fixed at the first start (and written into the
// checkpoint) and stays when fewer or more ranks carry it. A micro-batch never exceeds that of the first start; what
// fewer ranks cannot take at once becomes accumulation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/data/sampler.h"

namespace lockstep {

// Fixed at the first start of a run, by the ranks that were asked for, whether or not all had come.
struct BatchShape {
  int64_t global_batch = 0;     // samples
  int64_t micro_batch_max = 0;  // what a rank takes in one forward: samples, or their cost (BatchSource::cost)
  int declared_world_size = 1;  // for --lr_scaling
};

// Errors (kInvalid): a total batch smaller than the world size (both named).
Result<BatchShape> batch_shape(const TrainingOptions& training, int declared_world_size);

// The micro-batches of `rank`: consecutive slots of a global batch whose slots have these costs. Always at least one
// range; an empty share is one empty range.
std::vector<SlotRange> micro_batches_of_rank(const BatchShape& shape, std::span<const int64_t> costs, int rank,
                                             int world_size);

// Micro-batches per step of the fullest rank.
int64_t accumulation_steps(const BatchShape& shape, int world_size);

}  // namespace lockstep
