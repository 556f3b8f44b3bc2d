// A plan as YAML for people: what changes in the status, events, actions in words, when to look again.
#pragma once

#include <map>
#include <string>

#include "operator/train/observed.h"
#include "operator/train/plan.h"

namespace lockstep::train {

// What the operator makes of a new TrainJob of which nothing else is said. Other plans are shown by their differences
// from this one.
struct UsualPlan {
  UsualPlan() = default;
  UsualPlan(const Plan& plan, const Observed& observed);

  api::TrainJobStatus status;
  std::map<std::string, Json> objects;  // by kind: the first one
};

// `usual`: with an empty one, everything is shown in full.
std::string plan_text(const Plan& plan, const Observed& observed, bool shows_objects, UsualPlan usual);

// "create pod sasrec-1-1", "delete pod sasrec-1-0", …
std::string words_of(const Action& action);

}  // namespace lockstep::train
