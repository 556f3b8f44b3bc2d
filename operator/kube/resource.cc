#include "operator/kube/resource.h"

namespace lockstep::kube {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

}  // namespace

std::string Resource::api_version() const {
  if (group.empty()) return version;
  std::string text = group;
  return text.append("/").append(version);
}

std::string Resource::crd_name() const { return plural + "." + group; }

std::string group_path(const Resource& resource) {
  std::string path = resource.group.empty() ? "/api/" : "/apis/" + percent_encoded(resource.group) + "/";
  return path.append(percent_encoded(resource.version));
}

std::string collection_path(const Resource& resource, const std::string& ns) {
  std::string path = group_path(resource);
  if (resource.namespaced && !ns.empty()) path.append("/namespaces/").append(percent_encoded(ns));
  return path.append("/").append(percent_encoded(resource.plural));
}

std::string object_path(const Resource& resource, const api::ObjectKey& key, const std::string& subresource) {
  std::string path = collection_path(resource, key.ns);
  path.append("/").append(percent_encoded(key.name));
  if (!subresource.empty()) path.append("/").append(percent_encoded(subresource));
  return path;
}

std::string percent_encoded(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 0xF];
    }
  }
  return out;
}

Query& Query::add(std::string_view name, std::string_view value) {
  if (!text_.empty()) text_ += '&';
  text_.append(percent_encoded(name)).append("=").append(percent_encoded(value));
  return *this;
}

Query& Query::add_if(std::string_view name, std::string_view value) { return value.empty() ? *this : add(name, value); }

const Resource& pods() {
  static const Resource resource{"", "v1", "pods", "Pod"};
  return resource;
}

const Resource& services() {
  static const Resource resource{"", "v1", "services", "Service"};
  return resource;
}

const Resource& events() {
  static const Resource resource{"", "v1", "events", "Event"};
  return resource;
}

const Resource& nodes() {
  static const Resource resource{"", "v1", "nodes", "Node", false};
  return resource;
}

const Resource& persistent_volume_claims() {
  static const Resource resource{"", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"};
  return resource;
}

const Resource& leases() {
  static const Resource resource{"coordination.k8s.io", "v1", "leases", "Lease"};
  return resource;
}

const Resource& network_policies() {
  static const Resource resource{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"};
  return resource;
}

const Versions& kueue_workloads() {
  static const Versions versions{{"kueue.x-k8s.io", "v1beta2", "workloads", "Workload"},
                                 {"kueue.x-k8s.io", "v1beta1", "workloads", "Workload"}};
  return versions;
}

Resource kueue_resource_flavors(const std::string& version) {
  return {"kueue.x-k8s.io", version, "resourceflavors", "ResourceFlavor", false};
}

Resource kueue_priority_classes(const std::string& version) {
  return {"kueue.x-k8s.io", version, "workloadpriorityclasses", "WorkloadPriorityClass", false};
}

const Resource& priority_classes() {
  static const Resource resource{"scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false};
  return resource;
}

const Resource& train_jobs() {
  // A spec of a quarter of this is a very large one, and the operator keeps and copies it.
  constexpr size_t kSpecBytesMax = size_t{256} << 10;
  static const Resource resource{"lockstep.dev", "v1", "trainjobs", "TrainJob", true, kSpecBytesMax};
  return resource;
}

const Versions& native_pod_groups() {
  static const Versions versions{{"scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup"},
                                 {"scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup"}};
  return versions;
}

const Versions& volcano_pod_groups() {
  static const Versions versions{{"scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"}};
  return versions;
}

const Versions& coscheduling_pod_groups() {
  static const Versions versions{{"scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"}};
  return versions;
}

const Versions& disruption_budgets() {
  static const Versions versions{{"policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"}};
  return versions;
}

}  // namespace lockstep::kube
