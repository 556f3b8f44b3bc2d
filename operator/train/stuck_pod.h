// A pod that is scheduled and does not start: its Kubernetes node may be at fault (network plugin, device plugin, disk,
// mount). Pure.
//
// It is replaced, on another node and without being counted, when it has not started a third of
// health.startupTimeoutSeconds after it was scheduled, if more than half of its peers have. Each rank's pod is moved
// once: when the next one does not start either, the node is not the likely cause. What a pod of another node would
// wait for as well (a missing image, ConfigMap or Secret), or what only this node has (a volume), moves no pod.
#pragma once

#include <optional>
#include <vector>

#include "operator/train/observed.h"
#include "operator/train/pod_end.h"

namespace lockstep::train {

// When the pod counts as stuck, if it does not start until then; nullopt: it waits for something else than its node
// (an image, an init container, a scheduler), or nobody says since when it is scheduled.
std::optional<api::UnixSeconds> when_stuck(const PodView& pod, const Observed& observed);
// May another node be able to start it? `current` are the pods of the job, by node rank.
bool may_move(const PodView& pod, const std::vector<const PodView*>& current, const Observed& observed);
// `num_started` of `num_others` is how many of its peers have started.
PodEnd end_of_stuck_pod(const PodView& pod, int num_started, int num_others, const Observed& observed);

}  // namespace lockstep::train
