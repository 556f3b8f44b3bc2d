// The CEL rules of TrainJob's CRD, restated in C++, except those that compare with the stored object (oldSelf): only
// the API server runs these. Pure.
//
// A rule is looked up by its CEL text. When the CRD's rule changes, the lookup fails until this file is changed, too; a
// test finds such rules. Another test runs the same cases through this code and through a real API server. The messages
// are the CRD's.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "runner/base/json.h"
#include "runner/contract/env_names.h"

namespace lockstep::api {

// Environment variables that the operator writes for launchers other than Lockstep. With Lockstep they would be wrong
// as soon as the number of pods changes.
inline constexpr std::array kForeignNames = {env::kMasterAddr,      env::kMasterPort,      env::kForeignNodeRank,
                                             env::kForeignNumNodes, env::kWorldSize,       env::kRank,
                                             env::kPetNumNodes,     env::kPetNprocPerNode, env::kPetNodeRank,
                                             env::kPetMasterAddr,   env::kPetMasterPort};

// `self` is the value of the field that has the rule, with defaults and of the right structure.
using RuleHolds = bool (*)(const Json& self);

// nullptr: no rule has this text.
RuleHolds restated_rule(std::string_view rule);
std::vector<std::string_view> restated_rules();

}  // namespace lockstep::api
