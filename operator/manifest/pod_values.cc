#include "operator/manifest/pod_values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "operator/api/label_text.h"
#include "operator/api/quantity.h"
#include "operator/manifest/pod_fields.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::manifest {
namespace {

constexpr int64_t kPortMax = 65535;
constexpr int64_t kUserMax = 2147483647;
constexpr int64_t kWeightMax = 100;
constexpr int64_t kModeMax = 0777;
constexpr size_t kPortNameMax = 15;
constexpr size_t kNameserversMax = 3;

// A field of the TrainJob, and where what is wrong with it goes.
class Place {
 public:
  Place(std::string path, std::vector<api::Problem>& problems) : path_(std::move(path)), problems_(&problems) {}

  template <typename NameOrIndex>
  [[nodiscard]] Place below(const NameOrIndex& name) const {
    return {api::field_below(path_, name), *problems_};
  }
  void add(std::string message) const { problems_->push_back({path_, std::move(message)}); }

 private:
  std::string path_;
  std::vector<api::Problem>* problems_;
};

std::string as_json(const Json& value) { return dump_line(value); }

// Null counts as absent, as for the API server.
bool has(const Json& object, const char* name) {
  const Json* const value = field(object, {name});
  return value != nullptr && !value->is_null();
}

// --- what many fields have in common

void check_text(const Json& object, const char* name, std::string (*expected_of)(std::string_view), const Place& at) {
  if (!has(object, name)) return;
  const std::string text = text_field(object, {name});
  const std::string expected = expected_of(text);
  if (!expected.empty()) at.below(name).add("is " + as_json(Json(text)) + ", expected " + expected);
}

void check_not_empty(const Json& object, const char* name, const Place& at) {
  if (text_field(object, {name}).empty()) at.below(name).add("is missing or empty, and has no default");
}

void check_number(const Json& object, const char* name, int64_t min, int64_t max, const Place& at) {
  if (!has(object, name)) return;
  const Json& value = object.at(name);
  const std::optional<int64_t> number = api::whole_number(value);
  if (!number || (*number >= min && *number <= max)) return;  // a port may be a name
  std::string expected = ", expected at least " + std::to_string(min);
  if (max != INT64_MAX) expected = ", expected " + std::to_string(min) + " to " + std::to_string(max);
  at.below(name).add("is " + as_json(value) + expected);
}

// The members of an object of which exactly one must be there. `what` names them in the message.
template <typename Names>
void check_one_of(const Json& object, const Names& names, const std::string& what, const Place& at) {
  std::vector<std::string> found;
  for (const char* name : names) {
    if (has(object, name)) found.emplace_back(name);
  }
  if (found.empty()) at.add("has no " + what + ": expected one of " + joined(names));
  if (found.size() > 1) {
    at.below(found.back()).add("is a second " + what + " beside " + found.front() + "; remove one of the two");
  }
}

// Calls `second(index, text)` for each entry of a list whose member `name` an entry before it has, too.
void check_unique(const Json& list, const char* name, const Place& at) {
  std::set<std::string> seen;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string text = text_field(list[i], {name});
    if (text.empty() || seen.insert(text).second) continue;
    at.below(i).below(name).add("is " + as_json(Json(text)) + " a second time; each needs another");
  }
}

// Below a volume: no way out of it.
void check_relative(const Json& object, const char* name, const Place& at) {
  const std::string path = text_field(object, {name});
  const std::string in_slashes = "/" + path + "/";
  if (path.starts_with("/")) at.below(name).add("is " + as_json(Json(path)) + ", expected a relative path");
  if (in_slashes.find("/../") != std::string::npos)
    at.below(name).add("is " + as_json(Json(path)) + ", expected a path without ..");
}

// --- metadata, selectors

void check_labels(const Json& object, const char* name, const Place& at) {
  if (!has(object, name)) return;
  for (const auto& [key, value] : object.at(name).items()) {
    const std::string fault = api::label_fault(key, value.is_string() ? value.get<std::string>() : "");
    if (!fault.empty()) at.below(name).below(key).add(fault);
  }
}

void check_metadata(const Json& metadata, const Place& at) {
  check_labels(metadata, "labels", at);
  if (!has(metadata, "annotations")) return;
  for (const auto& [key, value] : metadata.at("annotations").items()) {
    if (const std::string fault = api::annotation_fault(key); !fault.empty())
      at.below("annotations").below(key).add(fault);
  }
}

void check_label_selector(const Json& selector, const Place& at) { check_labels(selector, "matchLabels", at); }

void check_values(const Json& requirement, const Place& at) {
  const Json& values = list_field(requirement, {"values"});
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string text = values[i].is_string() ? values[i].get<std::string>() : "";
    const std::string expected = api::label_value_expected(text);
    if (!expected.empty()) at.below("values").below(i).add("is " + as_json(values[i]) + ", expected " + expected);
  }
}

// In and NotIn need values, Exists and DoesNotExist have none.
void check_requirement(const Json& requirement, const std::vector<std::string>& words, const Place& at) {
  check_text(requirement, "key", api::qualified_name_expected, at);
  const std::string word = text_field(requirement, {"operator"});
  const size_t count = list_field(requirement, {"values"}).size();
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    at.below("operator")
        .add("is " + as_json(Json(word)) + ", expected one of " + joined(words) + api::did_you_mean(word, words));
  } else if (word == "Exists" || word == "DoesNotExist") {
    if (count > 0) at.below("values").add("has values, and operator " + word + " takes none; remove them");
  } else if (word == "Gt" || word == "Lt") {
    if (count != 1) at.below("values").add("has " + plural(count, "value") + ", expected one with operator " + word);
  } else if (count == 0) {
    at.below("values").add("is missing or empty; operator " + word + " needs at least one value");
  }
}

void check_label_requirement(const Json& requirement, const Place& at) {
  check_requirement(requirement, {"In", "NotIn", "Exists", "DoesNotExist"}, at);
  check_values(requirement, at);
}

void check_node_selector_term(const Json& term, const Place& at) {
  const Json& fields = list_field(term, {"matchFields"});
  for (size_t i = 0; i < fields.size(); ++i) {
    const Place place = at.below("matchFields").below(i);
    const std::string key = text_field(fields[i], {"key"});
    if (key != "metadata.name") place.below("key").add("is " + as_json(Json(key)) + ", expected metadata.name");
    if (list_field(fields[i], {"values"}).size() != 1) place.below("values").add("expected the name of one node");
  }
  const Json& expressions = list_field(term, {"matchExpressions"});
  for (size_t i = 0; i < expressions.size(); ++i) {
    check_requirement(expressions[i], {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"},
                      at.below("matchExpressions").below(i));
  }
}

// What pods require of nodes. In what they prefer the API server looks at no values.
void check_node_selector(const Json& selector, const Place& at) {
  const Json& terms = list_field(selector, {"nodeSelectorTerms"});
  if (terms.empty()) at.below("nodeSelectorTerms").add("is empty, expected at least one term");
  for (size_t i = 0; i < terms.size(); ++i) {
    const Json& expressions = list_field(terms[i], {"matchExpressions"});
    for (size_t k = 0; k < expressions.size(); ++k) {
      check_values(expressions[k], at.below("nodeSelectorTerms").below(i).below("matchExpressions").below(k));
    }
  }
}

void check_weighted(const Json& term, const Place& at) { check_number(term, "weight", 1, kWeightMax, at); }

// Keys of the pod's own labels, which are added to the selector.
void check_label_keys(const Json& object, const Place& at) {
  for (const char* name : {"matchLabelKeys", "mismatchLabelKeys"}) {
    if (list_field(object, {name}).empty() || has(object, "labelSelector")) continue;
    at.below(name).add("needs a labelSelector beside it");
  }
}

void check_pod_affinity_term(const Json& term, const Place& at) {
  check_label_keys(term, at);
  const Json& namespaces = list_field(term, {"namespaces"});
  for (size_t i = 0; i < namespaces.size(); ++i) {
    const std::string expected =
        namespaces[i].is_string() ? api::dns_label_expected(namespaces[i].get_ref<const std::string&>()) : "";
    if (!expected.empty())
      at.below("namespaces").below(i).add("is " + as_json(namespaces[i]) + ", expected " + expected);
  }
  if (text_field(term, {"topologyKey"}).empty()) return check_not_empty(term, "topologyKey", at);
  check_text(term, "topologyKey", api::qualified_name_expected, at);
}

void check_toleration(const Json& toleration, const Place& at) {
  const std::string key = text_field(toleration, {"key"});
  const std::string word = text_field(toleration, {"operator"});
  const std::string value = text_field(toleration, {"value"});
  if (!key.empty()) check_text(toleration, "key", api::qualified_name_expected, at);
  if (key.empty() && word != "Exists") {
    at.below("key").add("is missing; without a key the operator must be Exists, which tolerates every taint");
  }
  if (word == "Exists") {
    if (!value.empty()) {
      at.below("value").add("is " + as_json(Json(value)) +
                            ", and operator Exists takes none; remove it, or use operator Equal");
    }
  } else if (word == "Gt" || word == "Lt") {
    if (!parse_number(value))
      at.below("value").add("is " + as_json(Json(value)) + ", expected a whole number with " + word);
  } else {
    check_text(toleration, "value", api::label_value_expected, at);
  }
  if (has(toleration, "tolerationSeconds") && text_field(toleration, {"effect"}) != "NoExecute") {
    at.below("effect").add("must be NoExecute where tolerationSeconds is given");
  }
}

void check_topology_spread(const Json& constraint, const Place& at) {
  check_number(constraint, "maxSkew", 1, INT64_MAX, at);
  check_number(constraint, "minDomains", 1, INT64_MAX, at);
  if (has(constraint, "minDomains") && text_field(constraint, {"whenUnsatisfiable"}) != "DoNotSchedule") {
    at.below("minDomains").add("goes only with whenUnsatisfiable: DoNotSchedule; remove it");
  }
  check_not_empty(constraint, "topologyKey", at);
  check_label_keys(constraint, at);
}

// --- containers

void check_port(const Json& port, const Place& at) {
  check_number(port, "containerPort", 1, kPortMax, at);
  check_number(port, "hostPort", 0, kPortMax, at);
}

// As for a port's name: at most 15 lower-case letters, digits and single dashes, at least one letter.
bool is_port_name(const std::string& name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return name.size() <= kPortNameMax && api::dns_label_expected(name).empty() &&
         std::any_of(name.begin(), name.end(), is_letter) && name.find("--") == std::string::npos;
}
constexpr const char* kPortNameForm =
    ", expected at most 15 lower-case letters, digits and single dashes, with at least one letter";

void check_port_name(const Json& object, const char* name, const Place& at) {
  if (!has(object, name)) return;
  const Json& value = object.at(name);
  if (value.is_string() && !value.get_ref<const std::string&>().empty() && !is_port_name(value.get<std::string>())) {
    at.below(name).add("is " + as_json(value) + kPortNameForm);
  }
}

void check_action_port(const Json& action, const Place& at) {
  check_number(action, "port", 1, kPortMax, at);
  check_port_name(action, "port", at);
}

void check_exec(const Json& action, const Place& at) {
  if (list_field(action, {"command"}).empty()) at.below("command").add("is missing or empty, and has no default");
}

constexpr std::array kProbeHandlers = {"exec", "httpGet", "tcpSocket", "grpc"};
constexpr std::array kLifecycleHandlers = {"exec", "httpGet", "tcpSocket", "sleep"};

void check_probe(const Json& probe, const Place& at) {
  check_one_of(probe, kProbeHandlers, "handler", at);
  for (const char* name :
       {"initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"}) {
    check_number(probe, name, 0, INT64_MAX, at);
  }
  check_number(probe, "terminationGracePeriodSeconds", 1, INT64_MAX, at);
}

void check_lifecycle_handler(const Json& handler, const Place& at) {
  check_one_of(handler, kLifecycleHandlers, "handler", at);
}

void check_mount(const Json& mount, const Place& at) {
  check_not_empty(mount, "mountPath", at);
  check_relative(mount, "subPath", at);
  check_relative(mount, "subPathExpr", at);
  const std::string recursive = text_field(mount, {"recursiveReadOnly"});
  if (!recursive.empty() && recursive != "Disabled" && !bool_field(mount, {"readOnly"})) {
    at.below("recursiveReadOnly").add("is " + as_json(Json(recursive)) + ", and needs readOnly: true beside it");
  }
  if (!text_field(mount, {"subPath"}).empty() && !text_field(mount, {"subPathExpr"}).empty()) {
    at.below("subPathExpr").add("is given beside subPath; remove one of the two");
  }
}

void check_security(const Json& security, const Place& at) {
  check_number(security, "runAsUser", 0, kUserMax, at);
  check_number(security, "runAsGroup", 0, kUserMax, at);
  check_number(security, "fsGroup", 0, kUserMax, at);
  if (bool_field(security, {"allowPrivilegeEscalation"}) || !has(security, "allowPrivilegeEscalation")) return;
  const char* const name = "allowPrivilegeEscalation";
  if (bool_field(security, {"privileged"})) {
    at.below(name).add("is false, and a privileged container cannot be without it; remove one of the two");
  }
  for (const Json& capability : list_field(security, {"capabilities", "add"})) {
    if (capability != "CAP_SYS_ADMIN") continue;
    at.below(name).add("is false, and capability CAP_SYS_ADMIN cannot be without it; remove one of the two");
  }
}

void check_profile(const Json& profile, const Place& at) {
  const bool is_local = text_field(profile, {"type"}) == "Localhost";
  const bool has_file = !text_field(profile, {"localhostProfile"}).empty();
  if (is_local) check_relative(profile, "localhostProfile", at);
  if (is_local && !has_file) at.below("localhostProfile").add("is missing, and type Localhost needs it");
  if (!is_local && has(profile, "localhostProfile")) {
    at.below("localhostProfile").add("goes only with type Localhost; remove it");
  }
}

void check_env(const Json& variable, const Place& at) {
  const std::string name = text_field(variable, {"name"});
  const bool is_printable =
      std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~' && c != '='; });
  if (name.empty() || !is_printable)
    at.below("name").add("is " + as_json(Json(name)) + ", expected printable characters other than =");
  if (has(variable, "valueFrom") && !text_field(variable, {"value"}).empty()) {
    at.below("valueFrom").add("is given beside value; remove one of the two");
  }
}

// What a variable may be of its pod. metadata.labels['KEY'] and metadata.annotations['KEY'], too.
constexpr std::array kPodFields = {"metadata.name",
                                   "metadata.namespace",
                                   "metadata.uid",
                                   "spec.nodeName",
                                   "spec.host",  // an old name of spec.nodeName
                                   "spec.serviceAccountName",
                                   "status.hostIP",
                                   "status.hostIPs",
                                   "status.podIP",
                                   "status.podIPs"};
constexpr std::array kResourceFields = {"limits.cpu",   "limits.memory",   "limits.ephemeral-storage",
                                        "requests.cpu", "requests.memory", "requests.ephemeral-storage"};

void check_env_source(const Json& source, const Place& at) {
  const auto is_among = [](const auto& names, const std::string& text) {
    return std::find(names.begin(), names.end(), text) != names.end();
  };
  if (has(source, "fieldRef")) {
    const std::string path = text_field(source, {"fieldRef", "fieldPath"});
    const bool has_key =
        (path.starts_with("metadata.labels['") || path.starts_with("metadata.annotations['")) && path.ends_with("']");
    if (!has_key && !is_among(kPodFields, path)) {
      at.below("fieldRef")
          .below("fieldPath")
          .add("is " + as_json(Json(path)) + ", expected one of " + joined(kPodFields) +
               ", metadata.labels['KEY'], metadata.annotations['KEY']");
    }
  }
  if (has(source, "resourceFieldRef")) {
    const std::string resource = text_field(source, {"resourceFieldRef", "resource"});
    const bool is_of_pages = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if (!is_of_pages && !is_among(kResourceFields, resource)) {
      at.below("resourceFieldRef")
          .below("resource")
          .add("is " + as_json(Json(resource)) + ", expected one of " + joined(kResourceFields));
    }
  }
  check_one_of(source, std::array{"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"},
               "source", at);
}

void check_env_from(const Json& source, const Place& at) {
  check_one_of(source, std::array{"configMapRef", "secretRef"}, "source", at);
}

// The name of a Secret or a ConfigMap.
void check_object_name(const Json& reference, const Place& at) {
  if (text_field(reference, {"name"}).empty()) return check_not_empty(reference, "name", at);
  check_text(reference, "name", api::dns_subdomain_expected, at);
}

void check_key_of(const Json& selector, const Place& at) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
  check_not_empty(selector, "key", at);
  const std::string key = text_field(selector, {"key"});
  if (key.find_first_not_of(kLetters) != std::string::npos) {
    at.below("key").add("is " + as_json(Json(key)) + ", expected letters, digits, '-', '_' and '.'");
  }
  check_object_name(selector, at);
}

void check_named_source(const Json& source, const Place& at) { check_not_empty(source, "name", at); }

// --- volumes

void check_volume(const Json& volume, const Place& at) {
  check_text(volume, "name", api::dns_label_expected, at);
  std::vector<std::string> sources;
  for (const auto& [name, source] : volume.items()) {
    if (name != "name" && !source.is_null()) sources.push_back(name);
  }
  if (sources.size() > 1) {
    at.below(sources.back())
        .add("is a second source beside " + sources.front() + "; a volume has one, remove the other");
  }
}

void check_projection(const Json& projection, const Place& at) {
  std::vector<std::string> sources;
  for (const auto& [name, source] : projection.items()) {
    if (!source.is_null()) sources.push_back(name);
  }
  if (sources.size() > 1)
    at.below(sources.back()).add("is a second source beside " + sources.front() + "; write two entries");
}

void check_empty_dir(const Json& volume, const Place& at) {
  if (has(volume, "sizeLimit") && api::nano_units(volume.at("sizeLimit")).value_or(0) < 0) {
    at.below("sizeLimit").add("is " + as_json(volume.at("sizeLimit")) + ", expected at least 0");
  }
}

void check_host_path(const Json& volume, const Place& at) {
  check_not_empty(volume, "path", at);
  if (("/" + text_field(volume, {"path"}) + "/").find("/../") != std::string::npos) {
    at.below("path").add("is " + as_json(volume.at("path")) + ", expected a path without ..");
  }
}

void check_nfs(const Json& volume, const Place& at) {
  check_not_empty(volume, "server", at);
  const std::string path = text_field(volume, {"path"});
  if (!path.starts_with("/")) at.below("path").add("is " + as_json(Json(path)) + ", expected an absolute path");
}

void check_mode(const Json& volume, const Place& at) { check_number(volume, "defaultMode", 0, kModeMax, at); }

void check_config_map(const Json& volume, const Place& at) {
  check_not_empty(volume, "name", at);
  check_mode(volume, at);
}

void check_secret(const Json& volume, const Place& at) {
  check_not_empty(volume, "secretName", at);
  check_mode(volume, at);
}

void check_key_to_path(const Json& item, const Place& at) {
  check_not_empty(item, "key", at);
  check_not_empty(item, "path", at);
  check_relative(item, "path", at);
  check_number(item, "mode", 0, kModeMax, at);
}

void check_downward_file(const Json& file, const Place& at) {
  check_one_of(file, std::array{"fieldRef", "resourceFieldRef"}, "source", at);
  check_not_empty(file, "path", at);
  check_relative(file, "path", at);
  check_number(file, "mode", 0, kModeMax, at);
}

void check_csi(const Json& volume, const Place& at) { check_not_empty(volume, "driver", at); }

void check_pod_claim(const Json& claim, const Place& at) {
  check_one_of(claim, std::array{"resourceClaimName", "resourceClaimTemplateName"}, "source", at);
}

void check_claim(const Json& volume, const Place& at) { check_not_empty(volume, "claimName", at); }

void check_claim_spec(const Json& claim, const Place& at) {
  if (list_field(claim, {"accessModes"}).empty())
    at.below("accessModes").add("is missing or empty, and has no default");
  const Json* const storage = field(claim, {"resources", "requests", "storage"});
  if (storage == nullptr || storage->is_null()) {
    at.below("resources").below("requests").below("storage").add("is missing, and has no default");
  } else if (api::nano_units(*storage).value_or(0) <= 0) {
    at.below("resources").below("requests").below("storage").add("is " + as_json(*storage) + ", expected more than 0");
  }
}

// --- pods

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

void check_host_alias(const Json& alias, const Place& at) {
  const std::string ip = text_field(alias, {"ip"});
  if (!is_address(ip)) at.below("ip").add("is " + as_json(Json(ip)) + ", expected an IP address");
}

void check_dns(const Json& dns, const Place& at) {
  const Json& servers = list_field(dns, {"nameservers"});
  if (servers.size() > kNameserversMax) {
    at.below("nameservers").add("has " + std::to_string(servers.size()) + " entries, expected at most 3");
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    if (servers[i].is_string() && is_address(servers[i].get<std::string>())) continue;
    at.below("nameservers").below(i).add("is " + as_json(servers[i]) + ", expected an IP address");
  }
}

void check_pod_security(const Json& security, const Place& at) {
  check_security(security, at);
  const Json& groups = list_field(security, {"supplementalGroups"});
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::optional<int64_t> group = api::whole_number(groups[i]);
    if (group && *group >= 0 && *group <= kUserMax) continue;
    at.below("supplementalGroups").below(i).add("is " + as_json(groups[i]) + ", expected 0 to 2147483647");
  }
}

// Under hostNetwork a port of the container is the host's port. `taken`: those of all containers, with protocol and
// address, and where the first of each stands.
using HostPorts = std::set<std::tuple<int64_t, std::string, std::string>>;
void check_host_ports(const Json& container, bool is_host_network, const Place& at, HostPorts& taken) {
  const Json& ports = list_field(container, {"ports"});
  for (size_t i = 0; i < ports.size(); ++i) {
    const Place place = at.below("ports").below(i);
    const int64_t port = number_field(ports[i], {"containerPort"}).value_or(0);
    int64_t host_port = number_field(ports[i], {"hostPort"}).value_or(0);
    if (is_host_network && host_port == 0) host_port = port;
    if (host_port == 0) continue;
    if (is_host_network && host_port != port) {
      place.below("hostPort")
          .add("is " + std::to_string(host_port) + ", expected " + std::to_string(port) +
               " as containerPort, because of hostNetwork; remove it");
    }
    std::string protocol = text_field(ports[i], {"protocol"});
    if (protocol.empty()) protocol = "TCP";
    if (!taken.emplace(host_port, protocol, text_field(ports[i], {"hostIP"})).second) {
      place.below(has(ports[i], "hostPort") ? "hostPort" : "containerPort")
          .add("is " + std::to_string(host_port) + ", which another port of the pod takes on the host, too");
    }
  }
}

// The trainer is in every pod, also where the template does not contain it.
void check_container_names(const Json& pod_spec, const Place& at) {
  std::set<std::string> names;
  const Json& containers = list_field(pod_spec, {"containers"});
  for (size_t i = 0; i < containers.size(); ++i) names.insert(text_field(containers[i], {"name"}));
  names.insert(std::string(train::kTrainerContainer));
  const Json& before = list_field(pod_spec, {"initContainers"});
  for (size_t i = 0; i < before.size(); ++i) {
    const std::string name = text_field(before[i], {"name"});
    if (names.insert(name).second) continue;
    const bool is_trainer = name == train::kTrainerContainer;
    at.below("initContainers")
        .below(i)
        .below("name")
        .add("is " + as_json(Json(name)) + ", " +
             (is_trainer ? "the container that trains; give this one another name"
                         : "which another container has, too"));
  }
}

// An init container ends before the others start, so it has no probes; a sidecar among them (restartPolicy Always)
// does.
void check_init_container(const Json& container, const Place& at) {
  if (text_field(container, {"restartPolicy"}) == "Always") return;
  for (const char* name : {"lifecycle", "livenessProbe", "readinessProbe", "startupProbe"}) {
    if (has(container, name))
      at.below(name).add("is not for an init container without restartPolicy: Always; remove it");
  }
}

void check_image(const std::string& image, const Place& at) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  if (image.empty() || (!is_space(image.front()) && !is_space(image.back()))) return;
  at.add("is " + as_json(Json(image)) + ", expected no space at its ends");
}

void check_container(const Json& container, const Place& at) {
  check_text(container, "name", api::dns_label_expected, at);
  check_image(text_field(container, {"image"}), at.below("image"));
  const std::string restart = text_field(container, {"restartPolicy"});
  if (!restart.empty() && restart != "Always" && restart != "OnFailure" && restart != "Never") {
    at.below("restartPolicy").add("is " + as_json(Json(restart)) + ", expected Always, OnFailure or Never");
  }
  check_unique(list_field(container, {"volumeMounts"}), "mountPath", at.below("volumeMounts"));
  check_unique(list_field(container, {"ports"}), "name", at.below("ports"));
  const Json& ports = list_field(container, {"ports"});
  for (size_t i = 0; i < ports.size(); ++i) check_port_name(ports[i], "name", at.below("ports").below(i));
  for (const char* probe : {"livenessProbe", "startupProbe"}) {
    const std::optional<int64_t> successes = number_field(container, {probe, "successThreshold"});
    if (successes.value_or(1) > 1) {
      at.below(probe).below("successThreshold").add("is " + std::to_string(*successes) + ", expected 1");
    }
  }
  if (field(container, {"readinessProbe", "terminationGracePeriodSeconds"}) != nullptr) {
    at.below("readinessProbe").below("terminationGracePeriodSeconds").add("is not for readiness probes; remove it");
  }
  const bool is_privileged = bool_field(container, {"securityContext", "privileged"});
  const Json& mounts = list_field(container, {"volumeMounts"});
  for (size_t i = 0; i < mounts.size(); ++i) {
    if (is_privileged || text_field(mounts[i], {"mountPropagation"}) != "Bidirectional") continue;
    at.below("volumeMounts")
        .below(i)
        .below("mountPropagation")
        .add("is \"Bidirectional\", which only privileged containers may have");
  }
}

void check_pod_spec(const Json& pod_spec, const Place& at) {
  check_labels(pod_spec, "nodeSelector", at);
  check_text(pod_spec, "serviceAccountName", api::dns_subdomain_expected, at);
  check_text(pod_spec, "runtimeClassName", api::dns_subdomain_expected, at);
  check_text(pod_spec, "nodeName", api::dns_subdomain_expected, at);
  check_unique(list_field(pod_spec, {"volumes"}), "name", at.below("volumes"));
  check_unique(list_field(pod_spec, {"resourceClaims"}), "name", at.below("resourceClaims"));
  if (!list_field(pod_spec, {"ephemeralContainers"}).empty()) {
    at.below("ephemeralContainers")
        .add("are added to a pod that runs (kubectl debug), and cannot be in a template; remove them");
  }
  check_container_names(pod_spec, at);
  const bool is_host_network = bool_field(pod_spec, {"hostNetwork"});
  const Json& containers = list_field(pod_spec, {"containers"});
  HostPorts taken;
  for (size_t i = 0; i < containers.size(); ++i) {
    check_host_ports(containers[i], is_host_network, at.below("containers").below(i), taken);
  }
  const Json& before = list_field(pod_spec, {"initContainers"});
  for (size_t i = 0; i < before.size(); ++i) check_init_container(before[i], at.below("initContainers").below(i));
  if (text_field(pod_spec, {"dnsPolicy"}) == "None" && list_field(pod_spec, {"dnsConfig", "nameservers"}).empty()) {
    at.below("dnsConfig").below("nameservers").add("is empty, and dnsPolicy None needs at least one");
  }
  if (is_host_network && has(pod_spec, "hostUsers") && !bool_field(pod_spec, {"hostUsers"})) {
    at.below("hostUsers").add("is false, which does not go with hostNetwork; remove one of the two");
  }
  if (bool_field(pod_spec, {"shareProcessNamespace"}) && bool_field(pod_spec, {"hostPID"})) {
    at.below("shareProcessNamespace").add("does not go with hostPID; remove one of the two");
  }
  std::set<std::pair<std::string, std::string>> spreads;
  const Json& constraints = list_field(pod_spec, {"topologySpreadConstraints"});
  for (size_t i = 0; i < constraints.size(); ++i) {
    const std::string key = text_field(constraints[i], {"topologyKey"});
    if (spreads.emplace(key, text_field(constraints[i], {"whenUnsatisfiable"})).second) continue;
    at.below("topologySpreadConstraints")
        .below(i)
        .add("has the topologyKey and whenUnsatisfiable of another; change or remove it");
  }
}

using Rule = void (*)(const Json& value, const Place& at);

const std::map<std::string, Rule, std::less<>>& rules() {
  static const std::map<std::string, Rule, std::less<>> made = {
      {"AppArmorProfile", check_profile},
      {"CSIVolumeSource", check_csi},
      {"ConfigMapEnvSource", check_object_name},
      {"ConfigMapKeySelector", check_key_of},
      {"ConfigMapProjection", check_named_source},
      {"ConfigMapVolumeSource", check_config_map},
      {"Container", check_container},
      {"ContainerPort", check_port},
      {"DownwardAPIVolumeFile", check_downward_file},
      {"EmptyDirVolumeSource", check_empty_dir},
      {"EnvFromSource", check_env_from},
      {"EnvVar", check_env},
      {"EnvVarSource", check_env_source},
      {"ExecAction", check_exec},
      {"GRPCAction", check_action_port},
      {"HTTPGetAction", check_action_port},
      {"HostAlias", check_host_alias},
      {"HostPathVolumeSource", check_host_path},
      {"KeyToPath", check_key_to_path},
      {"LabelSelector", check_label_selector},
      {"LabelSelectorRequirement", check_label_requirement},
      {"LifecycleHandler", check_lifecycle_handler},
      {"NFSVolumeSource", check_nfs},
      {"NodeSelector", check_node_selector},
      {"NodeSelectorTerm", check_node_selector_term},
      {"ObjectMeta", check_metadata},
      {"PersistentVolumeClaimSpec", check_claim_spec},
      {"PersistentVolumeClaimVolumeSource", check_claim},
      {"PodAffinityTerm", check_pod_affinity_term},
      {"PodDNSConfig", check_dns},
      {"PodResourceClaim", check_pod_claim},
      {"PodSecurityContext", check_pod_security},
      {"PodSpec", check_pod_spec},
      {"PreferredSchedulingTerm", check_weighted},
      {"Probe", check_probe},
      {"SeccompProfile", check_profile},
      {"SecretEnvSource", check_object_name},
      {"SecretKeySelector", check_key_of},
      {"SecretProjection", check_named_source},
      {"SecretVolumeSource", check_secret},
      {"SecurityContext", check_security},
      {"TCPSocketAction", check_action_port},
      {"Toleration", check_toleration},
      {"TopologySpreadConstraint", check_topology_spread},
      {"Volume", check_volume},
      {"VolumeMount", check_mount},
      {"VolumeProjection", check_projection},
      {"WeightedPodAffinityTerm", check_weighted},
  };
  return made;
}

// --- resources

// One quantity, and where it was written: the trainer's come from resourcesPerNode or from the template.
struct Amount {
  Json value;
  std::string path;
  [[nodiscard]] long double nano() const { return api::nano_units(value).value_or(0); }
};
struct Resources {
  std::map<std::string, Amount> limits;
  std::map<std::string, Amount> requests;

  // Adds those of one ResourceRequirements; they replace others of the same name.
  void add(const Json& resources, const std::string& path) {
    add_kind(resources, "limits", path, limits);
    add_kind(resources, "requests", path, requests);
  }

 private:
  static void add_kind(const Json& resources, const char* kind, const std::string& path,
                       std::map<std::string, Amount>& into) {
    if (!has(resources, kind)) return;
    for (const auto& [name, value] : resources.at(kind).items()) {
      if (!value.is_null()) into[name] = {value, api::field_below(api::field_below(path, kind), name)};
    }
  }
};

bool is_huge_pages(const std::string& name) { return name.starts_with("hugepages-"); }
bool is_native(const std::string& name) {
  return name.find('/') == std::string::npos || name.find("kubernetes.io/") != std::string::npos;
}
// A GPU, a network card, …: counted in whole pieces, and never more handed out than there are.
bool is_extended(const std::string& name) { return !is_native(name); }

// "" when a container may ask for a resource of this name.
std::string resource_name_fault(const std::string& name) {
  if (const std::string expected = api::qualified_name_expected(name); !expected.empty()) {
    return "a resource's name is " + expected;
  }
  if (is_extended(name)) return name.starts_with("requests.") ? "a resource's name does not begin with requests." : "";
  const bool is_known = name == "cpu" || name == "memory" || name == "ephemeral-storage" || is_huge_pages(name);
  if (is_known || name.find('/') != std::string::npos) return {};
  std::string fault =
      "is no resource of containers: expected cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain";
  if (name.find("gpu") != std::string::npos) fault += "; did you mean nvidia.com/gpu?";
  return fault;
}

void check_amount(const std::string& name, const Amount& amount, const Place& at) {
  if (const std::string fault = resource_name_fault(name); !fault.empty()) return at.add(fault);
  if (amount.nano() < 0) at.add("is " + as_json(amount.value) + ", expected at least 0");
  if (is_huge_pages(name)) {
    const long double page = api::nano_units(name.substr(std::string_view("hugepages-").size())).value_or(0);
    if (page > 0 && (amount.nano() <= 0 || std::fmod(amount.nano(), page) != 0)) {
      at.add("is " + as_json(amount.value) + ", expected a multiple of the page's size");
    }
  }
  if (is_extended(name) && std::fmod(amount.nano(), api::kNanoUnits) != 0) {
    at.add("is " + as_json(amount.value) + ", expected a whole number: " + name + " is not divided");
  }
}

void check_resources(const Resources& resources, std::vector<api::Problem>& problems) {
  const size_t before = problems.size();
  for (const auto* const kind : {&resources.limits, &resources.requests}) {
    for (const auto& [name, amount] : *kind) check_amount(name, amount, {amount.path, problems});
  }
  if (problems.size() != before) return;
  for (const auto& [name, request] : resources.requests) {
    const Place at(request.path, problems);
    const auto limit = resources.limits.find(name);
    const bool must_be_equal = is_extended(name) || is_huge_pages(name);
    if (limit == resources.limits.end()) {
      if (must_be_equal)
        at.add("has no limit: write limits: {" + name + ": " + as_json(request.value) +
               "}; the request follows from it");
    } else if (must_be_equal && request.nano() != limit->second.nano()) {
      at.add("is " + as_json(request.value) + ", expected " + as_json(limit->second.value) + " as in limits: " + name +
             " has one number for both; remove the request");
    } else if (request.nano() > limit->second.nano()) {
      at.add("is " + as_json(request.value) + ", above the limit of " + as_json(limit->second.value) +
             "; lower the request or raise the limit");
    }
  }
  const auto asks_for = [&](const auto& matches) {
    const auto any = [&](const std::map<std::string, Amount>& kind) {
      return std::find_if(kind.begin(), kind.end(), [&](const auto& entry) { return matches(entry.first); });
    };
    if (const auto it = any(resources.limits); it != resources.limits.end()) return &it->second;
    const auto it = any(resources.requests);
    return it == resources.requests.end() ? nullptr : &it->second;
  };
  const Amount* const pages = asks_for(is_huge_pages);
  if (pages != nullptr &&
      asks_for([](const std::string& name) { return name == "cpu" || name == "memory"; }) == nullptr) {
    Place(pages->path, problems).add("needs cpu or memory beside it");
  }
}

// What containers claim is among the claims of the pod.
void check_claims(const api::TrainJobSpec& spec, const Json& resources, const std::string& path,
                  std::vector<api::Problem>& problems) {
  std::set<std::string> names;
  for (const Json& claim : list_field(spec.trainer.pod_template, {"spec", "resourceClaims"})) {
    names.insert(text_field(claim, {"name"}));
  }
  const Json& claims = list_field(resources, {"claims"});
  for (size_t i = 0; i < claims.size(); ++i) {
    const std::string name = text_field(claims[i], {"name"});
    if (names.contains(name)) continue;
    Place(path, problems)
        .below("claims")
        .below(i)
        .below("name")
        .add("is " + as_json(Json(name)) + ", which is not among resourceClaims of the template's spec");
  }
}

void check_all_resources(const api::TrainJobSpec& spec, std::vector<api::Problem>& problems) {
  const int trainer = train::trainer_index(spec.trainer.pod_template);
  Resources of_trainer;
  for (const char* list : {"containers", "initContainers"}) {
    const std::string path = std::string(train::kTemplatePath) + ".spec." + list;
    const Json& containers = list_field(spec.trainer.pod_template, {"spec", list});
    for (size_t i = 0; i < containers.size(); ++i) {
      if (!has(containers[i], "resources")) continue;
      const bool is_trainer = list[0] == 'c' && static_cast<int>(i) == trainer;
      const std::string at = api::field_below(api::field_below(path, i), "resources");
      Resources own;
      (is_trainer ? of_trainer : own).add(containers[i].at("resources"), at);
      check_resources(own, problems);  // of the trainer: nothing
      // The trainer's claims are those of resourcesPerNode, where it has any.
      if (is_trainer && has(spec.trainer.resources_per_node, "claims")) continue;
      check_claims(spec, containers[i].at("resources"), at, problems);
    }
  }
  const std::string of_field = "spec.trainer.resourcesPerNode";
  of_trainer.add(spec.trainer.resources_per_node, of_field);
  check_claims(spec, spec.trainer.resources_per_node, of_field, problems);
  check_resources(of_trainer, problems);
}

}  // namespace

std::vector<api::Problem> check_pod_values(const api::TrainJobSpec& spec) {
  std::vector<api::Problem> problems;
  const auto apply = [&](const std::string& type, const Json& value, const std::string& path) {
    const auto rule = rules().find(type);
    if (rule != rules().end()) rule->second(value, Place(path, problems));
  };
  check_image(spec.trainer.image, Place("spec.trainer.image", problems));
  visit_objects("PodTemplateSpec", spec.trainer.pod_template, std::string(train::kTemplatePath), apply);
  for (size_t i = 0; i < spec.trainer.env.size(); ++i) {
    visit_objects("EnvVar", spec.trainer.env[i], api::field_below("spec.trainer.env", i), apply);
  }
  if (spec.checkpoint && spec.checkpoint->volume.is_object()) {
    Json volume = spec.checkpoint->volume;
    volume["name"] = std::string(train::kCheckpointVolume);
    visit_objects("Volume", volume, "spec.checkpoint.volume", apply);
  }
  check_all_resources(spec, problems);
  return problems;
}

}  // namespace lockstep::manifest
