// What `lockstep run --local_nodes` knows of checkpoints: its agents leave the newest step in a file that they share,
// and it looks there when one of them has ended. An agent that was killed could not tell it any more. Threads: none.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// An empty path writes nothing. Best effort: what is lost is that a restart is counted which need not be.
void leave_checkpoint_mark(const std::string& path, int64_t step);

// The step in it; -1 when nothing, or something else, is there.
int64_t read_checkpoint_mark(int fd);

}  // namespace lockstep
