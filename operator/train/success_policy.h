// successPolicy: when a job is complete. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operator/api/trainjob.h"

namespace lockstep::train {

// How long the other pods of a Lockstep run may take to end after the first has ended with 0. By then the final
// checkpoint is durable, and all workers have passed a last barrier. Longer than the agents' own waits.
inline constexpr api::UnixSeconds kOthersFollowSeconds = 120;

// The state of the pod of a node rank.
enum class PodState {
  kRuns,        // its pod has begun
  kNotStarted,  // its pod has not begun, or there is none
  kDone,        // ended with 0
  kLost,        // ended otherwise
};

struct SuccessInput {
  std::vector<PodState> pods;  // by node rank
  api::UnixSeconds first_done_at = 0;
  api::UnixSeconds now = 0;
};

struct Success {
  std::optional<std::string> complete;  // a sentence: the job is complete
  bool stops_replacing_pods = false;    // training is complete: a pod that ends now is not replaced
  std::optional<api::UnixSeconds> requeue_at;
};
Success apply_success_policy(const api::TrainJobSpec& spec, const SuccessInput& input);

}  // namespace lockstep::train
