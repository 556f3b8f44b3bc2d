#include "runner/loop/batch_math.h"

#include <algorithm>
#include <string>

namespace lockstep {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Result<BatchShape> batch_shape(const TrainingOptions& training, int declared_world_size) {
  BatchShape shape;
  shape.declared_world_size = declared_world_size;
  if (training.batch_scope == BatchScope::kPerDevice) {
    shape.global_batch = training.batch_size * declared_world_size * training.grad_accum_steps;
    shape.micro_batch_max = training.batch_size;
    return shape;
  }
  if (training.batch_size < declared_world_size) {
    return Error{ErrorCode::kInvalid, "--batch_size " + std::to_string(training.batch_size) +
                                          " is the total over all ranks and smaller than their number, " +
                                          std::to_string(declared_world_size) +
                                          "; raise --batch_size, start fewer ranks with --nproc, or give the batch per "
                                          "rank with --batch_scope per_device"};
  }
  shape.global_batch = training.batch_size;
  shape.micro_batch_max = ceil_div(training.batch_size, declared_world_size * training.grad_accum_steps);
  return shape;
}

std::vector<SlotRange> micro_batches_of_rank(const BatchShape& shape, std::span<const int64_t> costs, int rank,
                                             int world_size) {
  return micro_batches(share_by_cost(rank, world_size, costs), costs, shape.micro_batch_max);
}

int64_t accumulation_steps(const BatchShape& shape, int world_size) {
  return std::max<int64_t>(1, ceil_div(ceil_div(shape.global_batch, world_size), shape.micro_batch_max));
}

}  // namespace lockstep
