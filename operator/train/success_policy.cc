#include "operator/train/success_policy.h"

#include <algorithm>

namespace lockstep::train {
namespace {

int count(const std::vector<PodState>& pods, PodState end) {
  return static_cast<int>(std::count(pods.begin(), pods.end(), end));
}

std::string all_done(const std::vector<PodState>& pods) {
  if (pods.size() == 1) return "The pod has ended with 0.";
  return "All " + std::to_string(pods.size()) + " pods have ended with 0.";
}

// A pod of a Lockstep run ends with 0 only when the whole run is complete.
Success success_of_lockstep_run(const SuccessInput& input) {
  Success success;
  success.stops_replacing_pods = true;
  const int done = count(input.pods, PodState::kDone);
  const int running = count(input.pods, PodState::kRuns);
  const api::UnixSeconds until = input.first_done_at + kOthersFollowSeconds;
  if (running > 0 && input.now < until) {
    success.requeue_at = until;
    return success;
  }
  const int others = static_cast<int>(input.pods.size()) - done;
  success.complete = "Training is complete: " + std::to_string(done) + " of " + std::to_string(input.pods.size()) +
                     " pods ended with 0, which they do only when all are done; the other " + std::to_string(others) +
                     (others == 1 ? " is" : " are") + " not needed any more.";
  return success;
}

}  // namespace

Success apply_success_policy(const api::TrainJobSpec& spec, const SuccessInput& input) {
  const std::vector<PodState>& pods = input.pods;
  const int done = count(pods, PodState::kDone);
  if (spec.success_policy == api::SuccessPolicy::kNode0 && !pods.empty() && pods.front() == PodState::kDone) {
    return {.complete = "Pod 0 has ended with 0 (successPolicy: Node0)."};
  }
  if (!pods.empty() && done == static_cast<int>(pods.size())) return {.complete = all_done(pods)};
  if (done > 0 && spec.trainer.launcher == api::Launcher::kLockstep) return success_of_lockstep_run(input);
  return {};
}

}  // namespace lockstep::train
