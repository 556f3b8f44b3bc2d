#include "operator/train/suspend.h"

namespace lockstep::train {

SuspendDecision apply_suspend(const api::TrainJobSpec& spec, const SuspendScene& scene) {
  if (!spec.suspend && scene.held == nullptr) {
    if (!scene.was_suspended) return {SuspendStep::kNone, "", "spec.suspend is false."};
    return {SuspendStep::kResuming, "", "The job was resumed; it goes on from its newest checkpoint."};
  }
  if (scene.pods_left == 0) {
    if (scene.held != nullptr) return {SuspendStep::kSuspended, scene.held->reason, scene.held->message};
    return {SuspendStep::kSuspended, "Suspended",
            "The job is suspended and has no pods; it goes on when spec.suspend is false."};
  }
  std::string message = scene.held == nullptr ? "" : scene.held->message + " ";
  message += std::to_string(scene.pods_left) + (scene.pods_left == 1 ? " pod was" : " pods were");
  message += " told to stop";
  if (spec.checkpoint) {
    message += " and write a last checkpoint, which may take " +
               std::to_string(spec.checkpoint->on_suspend_timeout_seconds) + " s";
  }
  return {SuspendStep::kStopping, "Suspending", message + "."};
}

}  // namespace lockstep::train
