// Rendezvous: the ranks of one generation meet at a store, learn who is missing, and agree that they run the same job.
// Threads: the training thread; blocks up to the timeout.
#pragma once

#include <chrono>
#include <string>

#include "runner/base/result.h"
#include "runner/contract/world.h"

namespace lockstep {

class StoreHandle;

// Without an agent: the TCP store at MASTER_ADDR:MASTER_PORT, served by rank 0 (or by torchrun, see World).
// Errors: kInvalid (the port is taken: names it and both ways to change it), kRetry (rank 0 does not answer).
Result<StoreHandle> open_tcp_store(const World& world, std::chrono::milliseconds timeout);

// One rank alone: keys in memory.
StoreHandle make_local_store();

// The ranks of a group meet, and may train together: meet(), and agree() unless there is an agent, whose coordinator
// has compared the terms before.
Status rendezvous(const StoreHandle& store, const World& world, const std::string& terms,
                  std::chrono::milliseconds timeout);

// Tells the store that this rank has arrived, and waits for all others. Three or four requests of each rank, whatever
// their number. Errors: kRetry, naming the ranks that did not come.
Status meet(const StoreHandle& store, const World& world, std::chrono::milliseconds timeout);

// Refuses ranks with different terms (contract/agreement.h), on all ranks alike. world_size requests of
// each rank. Errors: kInvalid names the difference, the ranks and both values.
Status agree(const StoreHandle& store, const World& world, const std::string& terms);

// Rank 0 says, the others listen: one JSON document about this forming. Blocks up to the store's timeout.
Result<std::string> tell_all(const StoreHandle& store, const World& world, const std::string& topic,
                             const std::string& document);

}  // namespace lockstep
