// Forking from a program with threads and signal handlers.
//
// Role: the two ends of the time between fork and exec in which a child still has its parent's handlers: they write
// into a pipe that both have, so that one Ctrl-C would reach the parent twice. Between them only async-signal-safe
// calls are allowed in the child: other threads of the parent may have held any lock.
#pragma once

#include <sys/types.h>

namespace lockstep {

// As ::fork, errno included; the child has all signals blocked.
pid_t fork_with_signals_blocked();

// In the child, in a process group of its own, before exec: no handler is left, and no signal blocked.
void reset_signals();

}  // namespace lockstep
