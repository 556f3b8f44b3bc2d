// Names, labels and ports of what a TrainJob owns. Pure.
//
// Names are deterministic, so that a create that is sent twice makes one object.
#pragma once

#include <string>
#include <string_view>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {

// On every pod, Service and NetworkPolicy of a job; the caches select by it.
inline constexpr std::string_view kJobLabel = "lockstep.dev/job";
inline constexpr std::string_view kNodeRankLabel = "lockstep.dev/node";    // node rank
inline constexpr std::string_view kAttemptLabel = "lockstep.dev/attempt";  // pod attempt of that rank
// The Service selects the pods with this label: all of them, or pod 0 only (desired_service.h). Before such
// a pod is replaced the operator removes the label, so that its DNS record is gone before its successor's appears.
inline constexpr std::string_view kServingLabel = "lockstep.dev/serving";
inline constexpr std::string_view kReservedLabelPrefix = "lockstep.dev/";
// numNodes in the pod's environment. An annotation and not a label: nothing selects by it.
inline constexpr std::string_view kNumNodesAnnotation = "lockstep.dev/num-nodes";
// metadata.generation of the TrainJob that the pod was made from.
inline constexpr std::string_view kGenerationAnnotation = "lockstep.dev/generation";
// Nodes that the pod's affinity keeps it away from, with commas between; absent: none.
inline constexpr std::string_view kAvoidsAnnotation = "lockstep.dev/avoids";

inline constexpr std::string_view kTrainerContainer = "trainer";
inline constexpr std::string_view kCheckpointVolume = "lockstep-checkpoint";
inline constexpr std::string_view kSharedMemoryVolume = "lockstep-shm";
inline constexpr std::string_view kSharedMemoryPath = "/dev/shm";

inline constexpr int kMasterPort = 29500;  // of other launchers

std::string pod_name(const std::string& job, int node_rank, int attempt);  // "sasrec-1-0"
std::string pod_hostname(const std::string& job, int node_rank);           // "sasrec-1"
// "sasrec-0.sasrec.team-a.svc": pod 0, through the headless Service.
std::string pod0_address(const api::ObjectMeta& job);

// "lockstep.dev/job=NAME,lockstep.dev/serving=true": the pods that count, for the scale subresource.
std::string pod_selector(const std::string& job);

// The job's labels for an object it owns.
Json owned_labels(const api::ObjectMeta& job);
// metadata.ownerReferences: the job controls the object, which the garbage collector deletes with it.
Json owner_references(const api::ObjectMeta& job);
// The metadata of such an object.
Json owned_metadata(const api::ObjectMeta& job, const std::string& name);

}  // namespace lockstep::train
