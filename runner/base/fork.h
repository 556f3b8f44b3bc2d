// Forking from a program with threads and signal handlers.
//
// Role: between fork and exec a child still has its parent's signal handlers. These write into a pipe that parent and
// child share, so one Ctrl-C would reach the parent twice. So the child is forked with signals blocked, and resets them
// before exec. Between the two calls the child may only make async-signal-safe calls (it must not allocate memory),
// because another thread of the parent may have held any lock.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep {

// Like ::fork, errno included, but the child has all signals blocked, and is in a process group of its own, so that a
// Ctrl-C in the terminal reaches only the parent. It is killed when the calling thread ends (PR_SET_PDEATHSIG).
pid_t fork_bound_child();

// The arguments or the environment for exec: pointers to the texts, which must outlive them, and a null pointer.
std::vector<char*> pointers_to(std::vector<std::string>& texts);

// True when SIGHUP, which a closed terminal sends, is ignored, as under nohup.
bool ignores_hangup();

// To be called in the child before exec: removes all handlers and unblocks all signals. An ignored SIGHUP stays
// ignored.
void reset_signals();

}  // namespace lockstep
