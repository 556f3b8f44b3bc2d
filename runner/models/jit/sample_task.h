// `lockstep jit sample`: images from a trained model. Threads: one for each
// of --nproc ranks, joined before it returns; input.log is called by one of them at a time.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Writes a contact sheet (PNG) to input.out, and the images into --folder. How many classes there are, the weights say;
// their names, the data's folders, where they are there. Usage error: unknown class, weights of another shape.
std::optional<Failure> sample_jit(const TaskInput& input);

}  // namespace lockstep
