// The variables that c10d's NCCL part and NCCL itself read in a worker: who decides what when a group breaks.
//
// Role: c10d's watchdog sleeps for up to a minute with its mutex held when a collective fails, and the group's
// destructor joins it; the agent kills a worker that has not left 12 s after the cut. So no such thread is started:
// c10d starts none when its waits block. The worker finds errors, ends collectives and leaves the group itself
// (two_phase_abort.h). Threads: set once, before a second thread is there and before c10d and NCCL read it.
#pragma once

#include "runner/contract/world.h"

namespace lockstep {

// What the worker sets, by name: what it cannot do without, whatever `given` says, and defaults for what `given` lacks.
Environment nccl_environment(const Environment& given);

// Puts it into the environment of this process.
void set_nccl_environment(const Environment& given);

}  // namespace lockstep
