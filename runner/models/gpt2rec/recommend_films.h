// `lockstep gpt2rec recommend`: films for users, and users for a film. Both may be new, known by their texts alone.
//
// A new user or film has no embedding of its own. It gets the mean of the trained embeddings, so that its text decides.
// Threads: one, and torch's.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Errors: kData: the data set or GPT-2's folder is missing or unreadable. kUsage: an unknown --user or --occupation,
// another GPT-2 than in training, weights of another shape. kCheckpoint: the result cannot be written.
std::optional<Failure> recommend_films(const TaskInput& input);

}  // namespace lockstep
