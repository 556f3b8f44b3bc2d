// CoordinatorNews: the address of a job's pod 0, and the pods that need it. Pure.
//
// The agents also look pod 0 up by its DNS name, but for up to 30 s after a change DNS may return the old address or
// none (docs/decisions.md).
#pragma once

#include <string>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/observed.h"

namespace lockstep::train {

struct CoordinatorNews {
  std::string address;  // of pod 0, while it runs; empty: there is nothing to send
  std::string token;    // the job's
  int port = 0;         // of the agents: spec.trainer.statusPort
  struct Pod {
    std::string uid;
    std::string ip;
    bool operator==(const Pod&) const = default;
  };
  std::vector<Pod> pods;  // those of the other node ranks that run
  bool operator==(const CoordinatorNews&) const = default;
};

// Only pods of the attempts in `status` count: a pod of an older attempt does not get the address, and its own is not
// given to the others.
CoordinatorNews coordinator_news(const Observed& observed, const api::TrainJobStatus& status);

}  // namespace lockstep::train
