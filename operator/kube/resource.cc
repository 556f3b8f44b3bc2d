#include "operator/kube/resource.h"

namespace lockstep::kube {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

}  // namespace

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

Resource kueue_resource_flavors(const std::string& version) {
  return {"kueue.x-k8s.io", version, "resourceflavors", "ResourceFlavor", false};
}

Resource kueue_priority_classes(const std::string& version) {
  return {"kueue.x-k8s.io", version, "workloadpriorityclasses", "WorkloadPriorityClass", false};
}

}  // namespace lockstep::kube
