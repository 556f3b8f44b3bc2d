// How `lockstep run --local_nodes` learns what its agents have done: they write the newest checkpointed step into a
// shared file, and 0 at the first step that they see committed. It reads the file when one of them has ended, because
// an agent that was killed cannot send a message. Threads: none.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// A step above the one in the file replaces it. An empty path writes nothing. Errors are ignored: without the mark, a
// restart may count against the limit although there was progress, or an error of the input may end a run that had
// worked.
void leave_checkpoint_mark(const std::string& path, int64_t step);

// The step in the file; -1 when the file is empty or holds something else.
int64_t read_checkpoint_mark(int fd);

}  // namespace lockstep
