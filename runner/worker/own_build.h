// What this worker is made of. Threads: any.
#pragma once

#include "runner/contract/worker_build.h"

namespace lockstep {

WorkerBuild own_build();

}  // namespace lockstep
