// Where lockstep-worker is. Threads: any.
#pragma once

#include <string>

#include "runner/base/result.h"
#include "runner/contract/world.h"

namespace lockstep {

// What LOCKSTEP_WORKER names, unseen; else the one beside this program. kInvalid: there is none.
Result<std::string> find_worker(const Environment& environment);

}  // namespace lockstep
