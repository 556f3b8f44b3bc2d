// SharedGets: which of a node's workers asks the store, when several ask for the same keys at the same time. Pure.
//
// Role: when a group forms, every rank asks for the addresses of all ranks. One request per node instead of one per
// rank brings down what the coordinator has to read, answer and send.
// A worker never reads a value older than one that it knows of: the coordinator answers a connection in order, so a
// request that is still open here was answered after everything that the node's workers have heard.
// Threads: none; one owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/contract/messages.h"

namespace lockstep {

class SharedGets {
 public:
  // False: the request is to be sent. True: a request of the same generation for the same keys is on its way, and its
  // answer is this one's too. Only for requests for several keys.
  bool joins(int local_rank, const StoreRequest& request);

  struct Asked {
    int local_rank = 0;
    uint64_t id = 0;  // of its request
  };
  // The other requests that the answer to this request answers. They are forgotten.
  std::vector<Asked> pop_others(Asked asked);

 private:
  struct Open {
    Asked first;
    std::vector<std::string> keys;
    std::vector<Asked> others;
  };
  uint64_t generation_ = 0;
  std::vector<Open> open_;  // of generation_
};

}  // namespace lockstep
