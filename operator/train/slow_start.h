// SlowStart: what the slowest of the pods that start waits for: volumes, network, image, an init container. Pure.
//
// A kubelet says in a pod's status how far it has come, and only in an event what is missing there; `kubectl describe
// pod` shows both, and `kubectl lockstep why` reads the events. The operator has no rights on Secrets and ConfigMaps,
// so it names those that the volumes need.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/train/observed.h"
#include "operator/train/pod_view.h"

namespace lockstep::train {

// The reason of PodsReady while a node does not get done with the volumes, the network or the devices of a pod.
inline constexpr std::string_view kContainerCreating = "ContainerCreating";

struct SlowStart {
  bool is_unprepared = false;  // the kubelet says that volumes, network or devices are not ready
  std::string message;         // a clause
};
// Of the pod that has come least far, of those that have started for 30 s, or for any time with `is_late`. `pods`: the
// current ones, by node rank; nullptr: none. Nothing: none is slow.
std::optional<SlowStart> find_slow_start(const std::vector<const PodView*>& pods, const Observed& o, bool is_late);

// When a pod that starts will be slow.
std::optional<api::UnixSeconds> next_slow_start(const std::vector<const PodView*>& pods, const Observed& o);

}  // namespace lockstep::train
