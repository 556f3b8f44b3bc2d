// Suspending and resuming, whoever asks for it: spec.suspend, a queue, or the operator's own hold. Pure; the policy is
// suspend.h.
#pragma once

#include "operator/train/failure_policy.h"
#include "operator/train/plan_state.h"

namespace lockstep::train {

// Does what spec.suspend, a queue, or the operator's own hold asks for. True: the job may have no pods.
bool keep_suspended(PlanState& state);
// spec.suspend was set back to false, or the spec was corrected, while pods were still stopping: they get successors.
void cancel_suspend(PlanState& state);
// Suspends a job that cannot go on with its present spec, until somebody changes the spec. It does not write
// spec.suspend, because a tool that owns the spec (GitOps) would set it back.
void suspend_until_spec_changes(PlanState& state, const JobFailure& why);
// Clears the counts of failures. For a job that a person resumes or whose spec a person has changed, since that person
// has dealt with the failures; not for a job that a queue resumes.
void forget_failures(PlanState& state);

}  // namespace lockstep::train
