// Looks at this machine. Takes about two seconds, most of them for the disk. Starts lockstep-worker, opens the driver's
// libraries, binds and lets go of ports, writes a file without a name into the checkpoint folder: nothing stays,
// however it ends. Threads: the caller's, and some that have ended when it returns.
#pragma once

#include <string>

#include "runner/base/result.h"
#include "runner/contract/world.h"
#include "runner/doctor/facts.h"

namespace lockstep::doctor {

// `worker`: the program, or why there is none.
Facts collect(const Request& request, const Environment& environment, const Result<std::string>& worker);

// The parts.
WorkerFacts inspect_worker(const Result<std::string>& program, const Environment& environment);
DriverFacts inspect_driver(const Environment& environment);
MachineFacts inspect_machine(const Environment& environment);
NetworkFacts inspect_network(const Request& request, const Environment& environment);
DiskFacts inspect_disk(const std::string& path);
DataFacts inspect_data(const std::string& path);

}  // namespace lockstep::doctor
