// `lockstep gpt2rec recommend`: films for users, and users for a film, also for those who are known by their texts
// alone.
//
// Who or what is new has no embedding of its own: it takes the mean of those that were trained, and its text says the
// rest. Threads: one, and torch's.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Data error: the data set (missing, unreadable, of other ids than the weights), GPT-2's folder. Usage: an unknown
// --user, weights of another shape.
std::optional<Failure> recommend_films(const TaskInput& input);

}  // namespace lockstep
