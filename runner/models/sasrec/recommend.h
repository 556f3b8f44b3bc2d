// `lockstep sasrec recommend`: writes, for each user, the items with the highest scores, given the user's whole
// history.
//
// A score is the dot product of the network's last output with the item's embedding. Users are scored in batches, each
// with one pass of the network and one product with the item table.
// Threads: one, and torch's.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Errors: kData: the data set is missing or unreadable, or its items are not the weights'; the file of --users
// is unreadable or names an unknown user. kUsage: an unknown --user, --topk above the number of items, weights of
// another shape. kCheckpoint: weights that are not finite; the result cannot be written.
std::optional<Failure> recommend(const TaskInput& input);

}  // namespace lockstep
