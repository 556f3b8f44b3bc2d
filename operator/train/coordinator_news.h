// CoordinatorNews: where node 0 of a job is, and who should know it. Pure.
//
// The name of node 0 resolves to it sooner or later; a negative answer, or an old address, may be cached for 30 s
// (docs/decisions.md).
#pragma once

#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/observed.h"

namespace lockstep::train {

struct CoordinatorNews {
  std::string address;  // of node 0's pod, while it runs; empty: there is nothing to tell
  std::string token;    // the job's
  struct Pod {
    std::string uid;
    std::string ip;
    bool operator==(const Pod&) const = default;
  };
  std::vector<Pod> pods;  // the other nodes' that run
  bool operator==(const CoordinatorNews&) const = default;
};

// `status` names each node's attempt: a pod of an older one is told nothing, and is not told of.
CoordinatorNews coordinator_news(const Observed& observed, const api::TrainJobStatus& status);

}  // namespace lockstep::train
