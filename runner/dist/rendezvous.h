// Rendezvous: the ranks of one generation meet at a store, find out who is missing, and check that all run the same
// job.
// Threads: the training thread; blocks up to the timeout.
#pragma once

#include <chrono>
#include <string>

#include "runner/base/result.h"
#include "runner/launch/world.h"

namespace lockstep {

class StoreHandle;

// Without an agent: the TCP store at MASTER_ADDR:MASTER_PORT, served by rank 0 (or by torchrun, see World).
// Errors: kInvalid (the port is taken: names it and both ways to change it), kRetry (rank 0 does not answer).
Result<StoreHandle> open_tcp_store(const World& world, std::chrono::milliseconds timeout);

// One rank alone: keys in memory.
StoreHandle make_local_store();

// Tells the store that this rank has arrived, and waits for all others. Each rank sends three or four requests, however
// many ranks there are. Errors: kRetry, naming the ranks that did not join.
Status meet(const StoreHandle& store, const Assignment& mine, std::chrono::milliseconds timeout);

// Compares the terms of all ranks (contract/agreement.h), when they have met; all ranks get the same result. Not needed
// with an agent, because its coordinator has compared the terms already. Each rank sends world_size
// requests. Errors: kInvalid names the difference, the ranks and both values.
Status agree(const StoreHandle& store, const Assignment& mine, const std::string& terms);

// Sends a JSON document from rank 0 to all ranks and returns it. Blocks up to the store's timeout. `topic`: its key in
// the store, to be used once per generation.
Result<std::string> broadcast_from_rank_zero(const StoreHandle& store, const Assignment& mine, const std::string& topic,
                                             const std::string& document);

}  // namespace lockstep
