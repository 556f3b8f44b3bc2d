// Looks at what was observed: the state of each pod, which of them ended badly, what pod 0 reports. Pure.
//
// Of make_plan's parts this one comes first: it fills PlanState's fields about pods and reports, and status.progress.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

void assess_pods(PlanState& state);
// Takes the newest report over if it came from the current pod 0, and then, if that pod has ended, the report that
// its agent left as its termination message.
void read_report(PlanState& state);

}  // namespace lockstep::train
