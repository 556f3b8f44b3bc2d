// `lockstep sasrec recommend`: for each user the items with the highest scores, from all that the user ever chose.
//
// A score is the dot product of the network's last output with the item's embedding. Users are worked through in
// batches: one pass of the network and one product with the item table each.
// Threads: one, and torch's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Data error: the data set (missing, unreadable, of another number of items than the weights), the file of --users.
// Usage: an unknown --user, --topk above the items, weights of another shape. Checkpoint: weights that are not finite.
std::optional<Failure> recommend(const TaskInput& input);

// The indices of the `k` highest scores, the highest first, of equal ones the lowest index first; fewer where there are
// fewer above -infinity.
std::vector<int32_t> best_indices(std::span<const float> scores, int64_t k);

}  // namespace lockstep
