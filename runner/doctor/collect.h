// Collects the facts about this machine, in about two seconds, most of them for the disk. Starts lockstep-worker, opens
// the driver's libraries, binds ports and releases them, and writes a file without a name into the checkpoint folder.
// Nothing of this remains, even if the process is killed.
// Threads: the caller's, and some that have ended when collect() returns.
#pragma once

#include <string>

#include "runner/base/environment.h"
#include "runner/base/result.h"
#include "runner/doctor/facts.h"

namespace lockstep::doctor {

// `worker`: the path of lockstep-worker, or the error why there is none.
Facts collect(const Request& request, const Environment& environment, const Result<std::string>& worker);

// The parts of collect().
WorkerFacts inspect_worker(const Result<std::string>& program, const Environment& environment);
DriverFacts inspect_driver(const Environment& environment);
MachineFacts inspect_machine(const Environment& environment);
NetworkFacts inspect_network(const Request& request, const Environment& environment);
DiskFacts inspect_disk(const std::string& path);
DataFacts inspect_data(const std::string& path);

}  // namespace lockstep::doctor
