// The CEL rules of TrainJob's CRD, said again in C++. Pure.
//
// A rule is found by its CEL text, so that neither can change without the other: a test runs the same cases through
// this and through a real API server, and another one finds rules that have no counterpart here. The messages are the
// CRD's.
#pragma once

#include <string_view>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

// `self` is the value of the field that has the rule, with defaults and of the right structure; `stored` is what the
// API server holds of it (null when it holds none; then rules that compare are not asked).
using RuleHolds = bool (*)(const Json& self, const Json& stored);

// nullptr: there is none with this text.
RuleHolds restated_rule(std::string_view rule);
std::vector<std::string_view> restated_rules();

}  // namespace lockstep::api
