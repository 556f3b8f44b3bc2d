// The lines around the stack that a worker writes to its stderr when its agent asks for it with SIGUSR1: the writer is
// link/stack_dump, the reader agent/node_workers.
#pragma once

#include <string_view>

namespace lockstep {

inline constexpr std::string_view kStackBegin = "stack of the training thread:";
inline constexpr std::string_view kStackEnd = "end of the stack";

}  // namespace lockstep
