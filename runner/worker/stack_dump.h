// Stack dump: on SIGUSR1 the thread that gets it (the training thread, unless that one blocks it) writes its stack to
// stderr. The agent asks for it before it kills a worker that hangs, so that the log says where it stood.
// Threads: install once, from the training thread. The handler allocates nothing.
#pragma once

namespace lockstep {

void install_stack_dump();

}  // namespace lockstep
