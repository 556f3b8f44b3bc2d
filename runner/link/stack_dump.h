// Stack dump: on SIGUSR1 the thread that receives the signal (the training thread, unless it blocks the signal) writes
// its stack to stderr. The agent sends SIGUSR1 before it kills a worker that hangs, so that the log shows where it
// hung.
// Threads: install once, from the training thread. The handler allocates nothing.
#pragma once

namespace lockstep {

void install_stack_dump();

}  // namespace lockstep
