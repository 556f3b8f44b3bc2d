// CoordinatorNews: where node 0 of a job is, and who should know it. Pure.
//
// The agents also look node 0 up by its name, but DNS may give them an old address, or none, for another 30 s
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
  std::vector<Pod> pods;  // those of the other node ranks that run
  bool operator==(const CoordinatorNews&) const = default;
};

// `status` names the attempt of each node rank: a pod of an older attempt is neither told anything nor named to the
// others.
CoordinatorNews coordinator_news(const Observed& observed, const api::TrainJobStatus& status);

}  // namespace lockstep::train
