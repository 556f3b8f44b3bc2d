// suspend: from a running job to one without pods, with a checkpoint in between, and back. Pure.
//
// Only users write spec.suspend. When a job cannot go on with its present spec, the operator suspends it by a note in
// the status instead (Bookkeeping::spec_hold), until the spec changes.
#pragma once

#include <string>

#include "operator/api/trainjob.h"
#include "operator/train/bookkeeping.h"

namespace lockstep::train {

enum class SuspendStep {
  kNone,       // the job runs, or is about to
  kStopping,   // its pods were told to stop and write their last checkpoint
  kSuspended,  // it has no pods
  kResuming,   // it was suspended and is to run again
};

struct SuspendInput {
  bool was_suspended = false;  // the condition Suspended is True
  int pods_left = 0;           // that have not ended, those on lost nodes left out
  const Hold* held = nullptr;  // why the operator itself suspends it; nullptr: it does not
};

struct SuspendDecision {
  SuspendStep step = SuspendStep::kNone;
  std::string reason;   // CamelCase, for the condition while it is True
  std::string message;  // a sentence, for the condition

  // The job may have no pods: it is suspended, or is being suspended.
  [[nodiscard]] bool forbids_pods() const { return step == SuspendStep::kStopping || step == SuspendStep::kSuspended; }
};
SuspendDecision apply_suspend(const api::TrainJobSpec& spec, const SuspendInput& input);

}  // namespace lockstep::train
