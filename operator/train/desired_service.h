// The headless Service that names the job's pods. Pure.
//
// For Lockstep jobs it selects only pod 0. Nothing looks up the other pods by name, and whenever a selected pod
// changes, Kubernetes rewrites the EndpointSlices of all of them. With other launchers all pods have names: torchrun's
// c10d rendezvous gives rank 0 to any of them, and its name to the others as MASTER_ADDR.
#pragma once

#include "operator/api/trainjob.h"
#include "operator/train/pod_view.h"
#include "runner/base/json.h"

namespace lockstep::train {

// `publishNotReadyAddresses`: the pods must find each other before they are ready.
Json desired_service(const api::TrainJob& job);
// Does the Service differ from `desired` in a field that the job needs? A Service that selects all pods, as earlier
// versions created it, does not: the job keeps it. Other fields that somebody added are ignored.
bool service_differs(const Json& service, const Json& desired);
// Does the Service select the pod?
bool selects(const Json& service, const PodView& pod);

}  // namespace lockstep::train
