#include "operator/train/suspend.h"

namespace lockstep::train {

SuspendDecision apply_suspend(const api::TrainJobSpec& spec, const SuspendInput& input) {
  if (!spec.suspend && input.held == nullptr) {
    if (!input.was_suspended) return {SuspendStep::kNone, "", "spec.suspend is false."};
    return {SuspendStep::kResuming, "", "The job was resumed; it goes on from its newest checkpoint."};
  }
  if (input.pods_left == 0) {
    if (input.held != nullptr) return {SuspendStep::kSuspended, input.held->reason, input.held->message};
    return {SuspendStep::kSuspended, "Suspended",
            "The job is suspended and has no pods; it goes on when spec.suspend is false."};
  }
  std::string message = input.held == nullptr ? "" : input.held->message + " ";
  message += std::to_string(input.pods_left) + (input.pods_left == 1 ? " pod was" : " pods were");
  message += " told to stop";
  if (spec.checkpoint) {
    message += " and write a last checkpoint, which may take " +
               std::to_string(spec.checkpoint->on_suspend_timeout_seconds) + " s";
  }
  return {SuspendStep::kStopping, "Suspending", message + "."};
}

}  // namespace lockstep::train
