// How many structures, or clusters of them, are kept from training to validate on. Threads: pure.
#pragma once

#include <cstdint>

namespace lockstep {

// Of `count`: share, at least one where any is asked for, and one is left to train on. 0 where that cannot be.
int64_t held_out_count(double share, int64_t count);

}  // namespace lockstep
