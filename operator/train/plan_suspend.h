// Suspending and resuming, whoever asks for it: spec.suspend, a queue, or the operator's own hold. Pure; the policy is
// suspend.h.
#pragma once

#include "operator/train/failure_policy.h"
#include "operator/train/plan_state.h"

namespace lockstep::train {

// Does what spec.suspend, a queue, or the operator's own hold asks for. Returns whether the job may have no pods.
bool keep_suspended(PlanState& state);
// spec.suspend was taken back, or the spec mended, while pods were on their way out: they are followed by others.
void take_back_suspend(PlanState& state);
// The job cannot go on as its spec stands, and whoever changed that can mend it. spec.suspend stays the user's: what
// writes the spec from elsewhere (GitOps) would set it back.
void hold(PlanState& state, const JobFailure& why);
// Whoever resumes a job, or changes its spec, has looked at what went wrong. A queue has not.
void forget_failures(PlanState& state);

}  // namespace lockstep::train
