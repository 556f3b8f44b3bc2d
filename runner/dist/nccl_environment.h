// The environment variables that a worker sets for c10d's NCCL backend and for NCCL.
//
// Role: when a collective fails, c10d's watchdog thread sleeps for up to a minute with its mutex held, and the group's
// destructor joins it; but the agent kills a worker that has not left 12 s after a cut. So these variables make c10d's
// waits block, and then it starts no watchdog. The worker itself finds errors, ends collectives and leaves the group
// (two_phase_abort.h). Threads: call once, before there is a second thread and before c10d and NCCL read the variables.
#pragma once

#include "runner/base/environment.h"

namespace lockstep {

// Returns what the worker sets, by name: variables that it needs, which override `given`, and defaults for variables
// that `given` lacks.
Environment nccl_environment(const Environment& given);

// Puts it into the environment of this process.
void set_nccl_environment(const Environment& given);

}  // namespace lockstep
