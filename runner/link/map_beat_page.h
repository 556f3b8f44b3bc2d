// Threads: pure.
#pragma once

#include "runner/base/result.h"
#include "runner/contract/beat_page.h"

namespace lockstep {

// The page that the agent reads, for the life of the process; closes the descriptor. kInvalid when it cannot be mapped,
// is none, or has another version than this program writes.
Result<BeatPage*> map_beat_page(int fd);

}  // namespace lockstep
