// The environment that the contract promises to a pod's trainer container (contract/env_names.h). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

// core/v1 EnvVars of the first pod of rank 0. All pods of a job have the same names, also where a rank does not use
// one, so that each pod shows what the others have.
std::vector<Json> desired_env(const api::TrainJob& job, int num_proc_per_node, const std::string& token);

// Changes those of desired_env that differ between the pods of a job. env: a list of EnvVars.
void set_rank(api::Launcher launcher, int node_rank, int attempt, Json& env);

// LOCKSTEP_RUN: (seconds of its creation << 20) | 20 bits of its UID. Higher for a TrainJob that was made later; below
// 2^53, so that every reader of JSON keeps it exact.
uint64_t run_number(const api::ObjectMeta& job);

// Does the operator set this variable for this launcher, or reserve its name?
bool is_reserved(std::string_view name, api::Launcher launcher);

}  // namespace lockstep::train
