// The flags of all workloads: the one list that the command line, the worker and `lockstep validate` read. Links no
// torch. Threads: made once, at its first use; constant from then on.
#pragma once

#include "runner/config/workload_flags.h"

namespace lockstep {

const WorkloadList& all_workload_flags();

}  // namespace lockstep
