// The status's conditions, counts, phase and message, once everything is decided. Pure; status.h says what each reads.
#pragma once

#include "operator/train/plan_state.h"

namespace lockstep::train {

void write_conditions(PlanState& state);

}  // namespace lockstep::train
