// Asks a cluster, by dry runs, whether it would take a TrainJob and its pods.
//
// Role: `validate --server` and `render --server`: what only a cluster knows
// (quota, policies, webhooks, its version), in the fields of the user's file.
// Nothing is created. Threads: none of its own; runs kubectl and waits for it.
#pragma once

#include <string>
#include <vector>

#include "operator/manifest/job_file.h"
#include "operator/manifest/kubectl.h"
#include "runner/base/result.h"

namespace lockstep::manifest {

// `job` has no findings. `ns`: where it would run; empty: as the file says,
// else as kubectl's context says. The findings are what the API server refuses,
// in its words. Errors: kubectl cannot be started, or what the operator's own
// pod lacks.
Result<std::vector<Finding>> ask_server(const JobInFile& job, const std::string& ns, const RunKubectl& run_kubectl);

// What kubectl wrote to standard error, one text for each thing that the server
// refuses: "spec.x: Invalid value: …".
std::vector<std::string> refusals_in(const std::string& kubectl_errors);

}  // namespace lockstep::manifest
