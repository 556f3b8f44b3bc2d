// What there is: how each rank's pod stands, who ended badly, what node 0 reports. Pure.
//
// Of make_plan's parts this one comes first: it fills PlanState's fields about pods and reports, and status.progress.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

void look_at_pods(PlanState& state);
// The newest report counts when node 0's pod of now has said it; what its agent said as it ended is newer than that.
void take_report(PlanState& state);

}  // namespace lockstep::train
