#include "operator/train/suspend.h"

namespace lockstep::train {

SuspendDecision apply_suspend(const api::TrainJobSpec& spec, const SuspendFacts& facts) {
  if (!spec.suspend && facts.held == nullptr) {
    if (!facts.was_suspended) return {SuspendStep::kNone, "", "spec.suspend is false."};
    return {SuspendStep::kResuming, "", "The job was resumed; it goes on from its newest checkpoint."};
  }
  if (facts.pods_left == 0) {
    if (facts.held != nullptr) return {SuspendStep::kSuspended, facts.held->reason, facts.held->message};
    return {SuspendStep::kSuspended, "Suspended",
            "The job is suspended and has no pods; it goes on when spec.suspend is false."};
  }
  std::string message = facts.held == nullptr ? "" : facts.held->message + " ";
  message += std::to_string(facts.pods_left) + (facts.pods_left == 1 ? " pod was" : " pods were");
  message += " told to stop";
  if (spec.checkpoint) {
    message += " and write a last checkpoint, which may take " +
               std::to_string(spec.checkpoint->on_suspend_timeout_seconds) + " s";
  }
  return {SuspendStep::kStopping, "Suspending", message + "."};
}

}  // namespace lockstep::train
