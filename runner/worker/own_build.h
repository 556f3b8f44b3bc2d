// The versions that this worker was built with and has loaded. Threads: any.
#pragma once

#include "runner/contract/worker_build.h"

namespace lockstep {

WorkerBuild own_build();

}  // namespace lockstep
