// suspend: from a running job to one without pods, with a checkpoint in between, and back. Pure.
#pragma once

#include <string>

#include "operator/api/trainjob.h"

namespace lockstep::train {

enum class SuspendStep {
  kNone,       // the job runs, or is about to
  kStopping,   // its pods were told to stop and write their last checkpoint
  kSuspended,  // it has no pods
  kResuming,   // it was suspended and is to run again
};

struct SuspendScene {
  bool was_suspended = false;  // the condition Suspended is True
  int pods_left = 0;           // that have not ended, those on lost machines left out
};

struct SuspendDecision {
  SuspendStep step = SuspendStep::kNone;
  std::string message;  // a sentence, for the condition
};
SuspendDecision apply_suspend(const api::TrainJobSpec& spec, const SuspendScene& scene);

}  // namespace lockstep::train
