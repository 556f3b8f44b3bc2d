// The CEL rules of TrainJob's CRD, restated in C++. Pure.
//
// A rule is found by its CEL text, so that a changed rule of the CRD has no counterpart here until this file changes,
// too; a test finds such rules. Another test runs the same cases through this and through a real API server. The
// messages are the CRD's.
#pragma once

#include <string_view>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

// `self` is the value of the field that has the rule, with defaults and of the right structure; `stored` is the value
// that the API server has stored (null when there is none; then rules that compare with it are not run).
using RuleHolds = bool (*)(const Json& self, const Json& stored);

// nullptr: there is none with this text.
RuleHolds restated_rule(std::string_view rule);
std::vector<std::string_view> restated_rules();

}  // namespace lockstep::api
