// A plan as YAML for people: what changes in the status, events, actions in words, when to look again.
#pragma once

#include <string>

#include "operator/train/observed.h"
#include "operator/train/plan.h"

namespace lockstep::train {

std::string plan_text(const Plan& plan, const Observed& observed, bool shows_objects);

// "create pod sasrec-1-1", "delete pod sasrec-1-0", …
std::string words_of(const Action& action);

}  // namespace lockstep::train
