// StoreTransport: sends a worker's requests to the store of its generation, which the coordinator keeps.
// Threads: any.
#pragma once

#include "runner/base/result.h"
#include "runner/contract/messages.h"

namespace lockstep {

// Sends a request and waits for its reply; the implementation fills in the id.
class StoreTransport {
 public:
  virtual ~StoreTransport() = default;
  // kGone when the link has ended.
  virtual Result<StoreReply> call(StoreRequest request) = 0;
};

}  // namespace lockstep
