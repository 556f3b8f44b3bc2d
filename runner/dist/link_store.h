// LinkStore: the rendezvous store of a worker that has an agent. Requests go over the link to the agent and from there
// to the coordinator, which keeps the keys, one store per generation. Rank 0 needs no port for it.
// Threads: as c10d::Store: used by one thread at a time; the transport is thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "runner/dist/store_handle.h"
#include "runner/link/store_transport.h"

namespace lockstep {

// The transport must outlive every copy of the handle.
StoreHandle make_link_store(StoreTransport& transport, uint64_t generation, std::chrono::milliseconds timeout);

}  // namespace lockstep
