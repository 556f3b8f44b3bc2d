// The headless Service that names the job's pods. Pure.
//
// For Lockstep and Torchrun jobs it selects node 0's pod alone: no other is looked up by name, and whenever a pod that
// a Service selects changes, Kubernetes writes the list of all of them anew. Other programs (launcher None) may use all
// names.
#pragma once

#include <map>
#include <string>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

// `publishNotReadyAddresses`: the nodes must find each other before they are ready.
Json desired_service(const api::TrainJob& job);
// Does it differ from `desired` in what the job needs of it? One that selects all pods, as earlier versions made it,
// does not: the job keeps it. Other fields that somebody wrote into it are ignored.
bool service_differs(const Json& service, const Json& desired);
// Does the Service select a pod with these labels?
bool selects(const Json& service, const std::map<std::string, std::string>& labels);

}  // namespace lockstep::train
