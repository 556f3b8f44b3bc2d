// Resource: where a kind of object lives in the API, the kinds that this operator knows, and the paths and queries that
// name objects. Pure; the table of kinds is in this header alone, so that train's decisions read it and link no client.
// Follows the Kubernetes API conventions: /api/v1/… for the core group, /apis/GROUP/VERSION/… for the others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/api/trainjob.h"
#include "operator/kube/object_text.h"

namespace lockstep::kube {

struct Resource {
  std::string group;  // empty: core
  std::string version;
  std::string plural;
  std::string kind;
  bool namespaced = true;
  size_t field_bytes_max = kFieldBytesMax;  // of its objects (read_object)

  // "v1", "apps/v1"
  [[nodiscard]] std::string api_version() const { return group.empty() ? version : group + "/" + version; }
  // "trainjobs.lockstep.dev": of all its versions
  [[nodiscard]] std::string crd_name() const { return plural + "." + group; }
};

// "/api/v1/namespaces/NS/pods"; with an empty `ns`, of all namespaces.
std::string collection_path(const Resource& resource, const std::string& ns);
// With `subresource` ("status", "scale") when it is not empty.
std::string object_path(const Resource& resource, const api::ObjectKey& key, const std::string& subresource = "");

// "/apis/GROUP/VERSION", "/api/v1": the document that lists the resources of one group.
std::string group_path(const Resource& resource);

// Everything but RFC 3986's unreserved characters becomes %XX.
std::string percent_encoded(std::string_view text);

// A query string, written name by name; values are encoded.
class Query {
 public:
  Query& add(std::string_view name, std::string_view value);
  // Only when the value is not empty.
  Query& add_if(std::string_view name, std::string_view value);
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Those that the operator uses, and its own.
inline const Resource kPods{"", "v1", "pods", "Pod"};
inline const Resource kServices{"", "v1", "services", "Service"};
inline const Resource kEvents{"", "v1", "events", "Event"};
inline const Resource kNodes{"", "v1", "nodes", "Node", false};
inline const Resource kPersistentVolumeClaims{"", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"};
inline const Resource kLeases{"coordination.k8s.io", "v1", "leases", "Lease"};
inline const Resource kNetworkPolicies{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"};
inline const Resource kPriorityClasses{"scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false};
// A spec of a quarter of this is a very large one, and the operator keeps and copies it.
inline constexpr size_t kTrainJobFieldBytesMax = size_t{256} << 10;
inline const Resource kTrainJobs{std::string(api::kGroup), "v1", "trainjobs",
                                 std::string(api::kKind),  true, kTrainJobFieldBytesMax};

// Kinds that a cluster may lack: the versions that we speak, the best first.
using Versions = std::vector<Resource>;
// Of the second, which is Kubernetes 1.36's, the size of a group never changes.
inline const Versions kNativePodGroups{{"scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup"},
                                       {"scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup"}};
inline const Versions kVolcanoPodGroups{{"scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"}};
inline const Versions kCoschedulingPodGroups{{"scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"}};
inline const Versions kKueueWorkloads{{"kueue.x-k8s.io", "v1beta2", "workloads", "Workload"},
                                      {"kueue.x-k8s.io", "v1beta1", "workloads", "Workload"}};
// Every cluster has it, but the right to it came with spec.disruption.budget: an operator whose roles are older goes on
// without it.
inline const Versions kDisruptionBudgets{{"policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"}};
// What a Workload refers to, in the version that the server has Workloads in.
Resource kueue_resource_flavors(const std::string& version);
Resource kueue_priority_classes(const std::string& version);

}  // namespace lockstep::kube
