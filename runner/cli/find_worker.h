// Finds the program lockstep-worker. Threads: any.
#pragma once

#include <string>

#include "runner/base/environment.h"
#include "runner/base/result.h"

namespace lockstep {

// The path in LOCKSTEP_WORKER, without a check; else the one beside this program. kInvalid: there is none.
Result<std::string> find_worker(const Environment& environment);

}  // namespace lockstep
