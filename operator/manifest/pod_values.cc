#include "operator/manifest/pod_values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

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

// A value of the TrainJob, where it stands, and where what is wrong with it goes. Null counts as absent, as for the API
// server. It refers to the value and to the problems.
class Field {
 public:
  Field(const Json& value, std::string path, std::vector<api::Problem>& problems)
      : value_(&value), path_(std::move(path)), problems_(&problems) {}

  // A member of a map.
  Field operator[](const std::string& name) const {
    static const Json null;
    const auto member = value_->is_object() ? value_->find(name) : value_->end();
    return {value_->is_object() && member != value_->end() ? *member : null, api::field_below(path_, name), *problems_};
  }
  // The entries of a list.
  [[nodiscard]] std::vector<Field> list() const {
    std::vector<Field> entries;
    if (!value_->is_array()) return entries;
    for (size_t i = 0; i < value_->size(); ++i) {
      entries.emplace_back((*value_)[i], api::field_below(path_, i), *problems_);
    }
    return entries;
  }
  // The members of a map, by name.
  [[nodiscard]] std::vector<std::pair<std::string, Field>> members() const {
    std::vector<std::pair<std::string, Field>> members;
    if (!value_->is_object()) return members;
    for (const auto& [name, value] : value_->items()) members.emplace_back(name, (*this)[name]);
    return members;
  }

  [[nodiscard]] bool is_there() const { return !value_->is_null(); }
  [[nodiscard]] bool is_text() const { return value_->is_string(); }
  [[nodiscard]] bool is_true() const { return *value_ == true; }
  [[nodiscard]] std::string text() const { return is_text() ? value_->get<std::string>() : std::string(); }
  [[nodiscard]] std::optional<int64_t> number() const { return api::whole_number(*value_); }
  [[nodiscard]] const Json& json() const { return *value_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  void add(std::string message) const { problems_->push_back({path_, std::move(message)}); }
  // "is VALUE" and what is wrong with that.
  void is(const std::string& fault) const { add("is " + (is_there() ? dump_line(*value_) : "\"\"") + fault); }
  void expected(const std::string& what) const { is(", expected " + what); }

 private:
  const Json* value_;
  std::string path_;
  std::vector<api::Problem>* problems_;
};

// --- what many fields have in common

using Form = std::string (*)(std::string_view);  // of api/label_text.h: what is expected, "" when the text is so

void check_form(const Field& field, Form form) {
  if (!field.is_there()) return;
  const std::string expected = form(field.text());
  if (!expected.empty()) field.expected(expected);
}

void check_not_empty(const Field& field) {
  if (field.text().empty() && field.list().empty()) field.add("is missing or empty, and has no default");
}

void check_number(const Field& field, int64_t min, int64_t max = INT64_MAX) {
  const std::optional<int64_t> number = field.number();
  if (!number || (*number >= min && *number <= max)) return;  // a port may be a name
  const std::string least = std::to_string(min);
  field.expected(max == INT64_MAX ? "at least " + least : least + " to " + std::to_string(max));
}

void check_mode(const Field& field) { check_number(field, 0, kModeMax); }

template <typename Names>
void check_word(const Field& field, const Names& names, const std::string& more = "") {
  if (std::find(names.begin(), names.end(), field.text()) != names.end()) return;
  field.expected("one of " + joined(names) + more);
}

// The members of a map of which exactly one must be there. `what` names them in the message.
void check_one_of(const Field& map, const std::vector<std::string>& names, const std::string& what = "source") {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), [&](const auto& n) { return map[n].is_there(); });
  if (found.empty()) map.add("has no " + what + ": expected one of " + joined(names));
  if (found.size() > 1) {
    map[found.back()].add("is a second " + what + " beside " + found.front() + "; remove one of the two");
  }
}

// Each entry of a list has another value of its member `name`.
void check_unique(const Field& list, const std::string& name) {
  std::set<std::string> seen;
  for (const Field& entry : list.list()) {
    const std::string text = entry[name].text();
    if (!text.empty() && !seen.insert(text).second) entry[name].is(" a second time; each needs another");
  }
}

void check_stays_below(const Field& path) {
  if (("/" + path.text() + "/").find("/../") != std::string::npos) path.expected("a path without ..");
}

// Below a volume: no way out of it.
void check_relative(const Field& path) {
  if (path.text().starts_with("/")) path.expected("a relative path");
  check_stays_below(path);
}

// --- metadata, selectors

void check_labels(const Field& labels) {
  for (const auto& [key, value] : labels.members()) {
    const std::string fault = api::label_fault(key, value.text());
    if (!fault.empty()) value.add(fault);
  }
}

void check_metadata(const Field& metadata) {
  check_labels(metadata["labels"]);
  for (const auto& [key, value] : metadata["annotations"].members()) {
    if (const std::string fault = api::annotation_fault(key); !fault.empty()) value.add(fault);
  }
}

void check_values(const Field& requirement) {
  for (const Field& value : requirement["values"].list()) check_form(value, api::label_value_expected);
}

// In and NotIn need values, Exists and DoesNotExist have none.
void check_requirement(const Field& requirement, const std::vector<std::string>& words) {
  check_form(requirement["key"], api::qualified_name_expected);
  const std::string word = requirement["operator"].text();
  const Field values = requirement["values"];
  const size_t count = values.list().size();
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    check_word(requirement["operator"], words, api::did_you_mean(word, words));
  } else if (word == "Exists" || word == "DoesNotExist") {
    if (count > 0) values.add("has values, and operator " + word + " takes none; remove them");
  } else if (word == "Gt" || word == "Lt") {
    if (count != 1) values.add("has " + plural(count, "value") + ", expected one with operator " + word);
  } else if (count == 0) {
    values.add("is missing or empty; operator " + word + " needs at least one value");
  }
}

void check_label_requirement(const Field& requirement) {
  check_requirement(requirement, {"In", "NotIn", "Exists", "DoesNotExist"});
  check_values(requirement);
}

void check_node_selector_term(const Field& term) {
  for (const Field& match : term["matchFields"].list()) {
    if (match["key"].text() != "metadata.name") match["key"].expected("metadata.name");
    if (match["values"].list().size() != 1) match["values"].add("expected the name of one node");
  }
  for (const Field& match : term["matchExpressions"].list()) {
    check_requirement(match, {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"});
  }
}

// What pods require of nodes. In what they prefer the API server looks at no values.
void check_node_selector(const Field& selector) {
  const Field terms = selector["nodeSelectorTerms"];
  if (terms.list().empty()) terms.add("is empty, expected at least one term");
  for (const Field& term : terms.list()) {
    for (const Field& match : term["matchExpressions"].list()) check_values(match);
  }
}

// Keys of the pod's own labels, which are added to the selector.
void check_label_keys(const Field& map) {
  for (const char* name : {"matchLabelKeys", "mismatchLabelKeys"}) {
    if (!map[name].list().empty() && !map["labelSelector"].is_there()) map[name].add("needs a labelSelector beside it");
  }
}

void check_pod_affinity_term(const Field& term) {
  check_label_keys(term);
  for (const Field& name : term["namespaces"].list()) check_form(name, api::dns_label_expected);
  const Field key = term["topologyKey"];
  key.text().empty() ? check_not_empty(key) : check_form(key, api::qualified_name_expected);
}

void check_toleration(const Field& toleration) {
  const Field key = toleration["key"];
  const Field value = toleration["value"];
  const std::string word = toleration["operator"].text();
  if (!key.text().empty()) check_form(key, api::qualified_name_expected);
  if (key.text().empty() && word != "Exists") {
    key.add("is missing; without a key the operator must be Exists, which tolerates every taint");
  }
  if (word == "Exists") {
    if (!value.text().empty()) value.is(", and operator Exists takes none; remove it, or use operator Equal");
  } else if (word == "Gt" || word == "Lt") {
    if (!parse_number(value.text())) value.expected("a whole number with " + word);
  } else {
    check_form(value, api::label_value_expected);
  }
  if (toleration["tolerationSeconds"].is_there() && toleration["effect"].text() != "NoExecute") {
    toleration["effect"].add("must be NoExecute where tolerationSeconds is given");
  }
}

void check_topology_spread(const Field& constraint) {
  check_number(constraint["maxSkew"], 1);
  check_number(constraint["minDomains"], 1);
  if (constraint["minDomains"].is_there() && constraint["whenUnsatisfiable"].text() != "DoNotSchedule") {
    constraint["minDomains"].add("goes only with whenUnsatisfiable: DoNotSchedule; remove it");
  }
  check_not_empty(constraint["topologyKey"]);
  check_label_keys(constraint);
}

// --- containers

void check_port(const Field& port) {
  check_number(port["containerPort"], 1, kPortMax);
  check_number(port["hostPort"], 0, kPortMax);
}

void check_port_name(const Field& name) {
  const std::string text = name.text();
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const bool is_valid = text.size() <= kPortNameMax && api::dns_label_expected(text).empty() &&
                        std::any_of(text.begin(), text.end(), is_letter) && text.find("--") == std::string::npos;
  if (text.empty() || is_valid) return;
  name.expected("at most 15 lower-case letters, digits and single dashes, with at least one letter");
}

void check_action_port(const Field& action) {
  check_number(action["port"], 1, kPortMax);
  check_port_name(action["port"]);
}

void check_probe(const Field& probe) {
  check_one_of(probe, {"exec", "httpGet", "tcpSocket", "grpc"}, "handler");
  for (const char* name :
       {"initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"}) {
    check_number(probe[name], 0);
  }
  check_number(probe["terminationGracePeriodSeconds"], 1);
}

void check_lifecycle_handler(const Field& handler) {
  check_one_of(handler, {"exec", "httpGet", "tcpSocket", "sleep"}, "handler");
}

void check_mount(const Field& mount) {
  check_not_empty(mount["mountPath"]);
  check_relative(mount["subPath"]);
  check_relative(mount["subPathExpr"]);
  const std::string recursive = mount["recursiveReadOnly"].text();
  if (!recursive.empty() && recursive != "Disabled" && !mount["readOnly"].is_true()) {
    mount["recursiveReadOnly"].is(", and needs readOnly: true beside it");
  }
  if (!mount["subPath"].text().empty() && !mount["subPathExpr"].text().empty()) {
    mount["subPathExpr"].add("is given beside subPath; remove one of the two");
  }
}

void check_security(const Field& security) {
  for (const char* name : {"runAsUser", "runAsGroup", "fsGroup"}) check_number(security[name], 0, kUserMax);
  const Field escalation = security["allowPrivilegeEscalation"];
  if (escalation.is_true() || !escalation.is_there()) return;
  if (security["privileged"].is_true()) {
    escalation.add("is false, and a privileged container cannot be without it; remove one of the two");
  }
  for (const Field& capability : security["capabilities"]["add"].list()) {
    if (capability.text() != "CAP_SYS_ADMIN") continue;
    escalation.add("is false, and capability CAP_SYS_ADMIN cannot be without it; remove one of the two");
  }
}

void check_profile(const Field& profile) {
  const Field file = profile["localhostProfile"];
  if (profile["type"].text() == "Localhost") {
    check_relative(file);
    if (file.text().empty()) file.add("is missing, and type Localhost needs it");
  } else if (file.is_there()) {
    file.add("goes only with type Localhost; remove it");
  }
}

void check_env(const Field& variable) {
  const std::string name = variable["name"].text();
  const bool is_printable =
      std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~' && c != '='; });
  if (name.empty() || !is_printable) variable["name"].expected("printable characters other than =");
  if (variable["valueFrom"].is_there() && !variable["value"].text().empty()) {
    variable["valueFrom"].add("is given beside value; remove one of the two");
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

void check_env_source(const Field& source) {
  const Field path = source["fieldRef"]["fieldPath"];
  const std::string text = path.text();
  const bool has_key =
      (text.starts_with("metadata.labels['") || text.starts_with("metadata.annotations['")) && text.ends_with("']");
  if (source["fieldRef"].is_there() && !has_key) {
    check_word(path, kPodFields, ", metadata.labels['KEY'], metadata.annotations['KEY']");
  }
  const Field resource = source["resourceFieldRef"]["resource"];
  const bool is_of_pages =
      resource.text().starts_with("limits.hugepages-") || resource.text().starts_with("requests.hugepages-");
  if (source["resourceFieldRef"].is_there() && !is_of_pages) check_word(resource, kResourceFields);
  check_one_of(source, {"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"});
}

// The name of a Secret or a ConfigMap.
void check_object_name(const Field& reference) {
  const Field name = reference["name"];
  name.text().empty() ? check_not_empty(name) : check_form(name, api::dns_subdomain_expected);
}

void check_key_of(const Field& selector) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
  const Field key = selector["key"];
  check_not_empty(key);
  if (key.text().find_first_not_of(kLetters) != std::string::npos) key.expected("letters, digits, '-', '_' and '.'");
  check_object_name(selector);
}

// --- volumes

void check_one_source(const Field& map, const std::string& advice) {
  std::vector<std::pair<std::string, Field>> sources = map.members();
  std::erase_if(sources, [](const auto& member) { return member.first == "name" || !member.second.is_there(); });
  if (sources.size() < 2) return;
  sources.back().second.add("is a second source beside " + sources.front().first + "; " + advice);
}

void check_volume(const Field& volume) {
  check_form(volume["name"], api::dns_label_expected);
  check_one_source(volume, "a volume has one, remove the other");
}

void check_empty_dir(const Field& volume) {
  if (api::nano_units(volume["sizeLimit"].json()).value_or(0) < 0) volume["sizeLimit"].expected("at least 0");
}

void check_host_path(const Field& volume) {
  check_not_empty(volume["path"]);
  check_stays_below(volume["path"]);
}

void check_nfs(const Field& volume) {
  check_not_empty(volume["server"]);
  if (!volume["path"].text().starts_with("/")) volume["path"].expected("an absolute path");
}

void check_file(const Field& file) {
  check_not_empty(file["path"]);
  check_relative(file["path"]);
  check_mode(file["mode"]);
}

void check_claim_spec(const Field& claim) {
  check_not_empty(claim["accessModes"]);
  const Field storage = claim["resources"]["requests"]["storage"];
  if (!storage.is_there()) {
    storage.add("is missing, and has no default");
  } else if (api::nano_units(storage.json()).value_or(0) <= 0) {
    storage.expected("more than 0");
  }
}

// --- pods

void check_address(const Field& field) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  const std::string text = field.text();
  for (const int family : {AF_INET, AF_INET6}) {
    if (::inet_pton(family, text.c_str(), bytes.data()) == 1) return;
  }
  field.expected("an IP address");
}

void check_dns(const Field& dns) {
  const std::vector<Field> servers = dns["nameservers"].list();
  if (servers.size() > kNameserversMax) {
    dns["nameservers"].add("has " + std::to_string(servers.size()) + " entries, expected at most 3");
  }
  for (const Field& server : servers) check_address(server);
}

void check_pod_security(const Field& security) {
  check_security(security);
  for (const Field& group : security["supplementalGroups"].list()) {
    group.number() ? check_number(group, 0, kUserMax) : group.expected("0 to " + std::to_string(kUserMax));
  }
}

// Under hostNetwork a port of the container is the host's port. `taken`: those of all containers, with protocol and
// address, and where the first of each stands.
using HostPorts = std::set<std::tuple<int64_t, std::string, std::string>>;
void check_host_ports(const Field& container, bool is_host_network, HostPorts& taken) {
  for (const Field& entry : container["ports"].list()) {
    const int64_t port = entry["containerPort"].number().value_or(0);
    int64_t host_port = entry["hostPort"].number().value_or(0);
    if (is_host_network && host_port == 0) host_port = port;
    if (host_port == 0) continue;
    if (is_host_network && host_port != port) {
      entry["hostPort"].expected(std::to_string(port) + " as containerPort, because of hostNetwork; remove it");
    }
    std::string protocol = entry["protocol"].text();
    if (protocol.empty()) protocol = "TCP";
    if (!taken.emplace(host_port, protocol, entry["hostIP"].text()).second) {
      entry[entry["hostPort"].is_there() ? "hostPort" : "containerPort"].add(
          "is " + std::to_string(host_port) + ", which another port of the pod takes on the host, too");
    }
  }
}

// The trainer is in every pod, also where the template does not contain it.
void check_container_names(const Field& pod_spec) {
  std::set<std::string> names = {std::string(train::kTrainerContainer)};
  for (const Field& container : pod_spec["containers"].list()) names.insert(container["name"].text());
  for (const Field& container : pod_spec["initContainers"].list()) {
    const std::string name = container["name"].text();
    if (names.insert(name).second) continue;
    container["name"].is(name == train::kTrainerContainer ? ", the container that trains; give this one another name"
                                                          : ", which another container has, too");
  }
}

// An init container ends before the others start, so it has no probes; a sidecar among them (restartPolicy Always)
// does.
void check_init_container(const Field& container) {
  if (container["restartPolicy"].text() == "Always") return;
  for (const char* name : {"lifecycle", "livenessProbe", "readinessProbe", "startupProbe"}) {
    if (!container[name].is_there()) continue;
    container[name].add("is not for an init container without restartPolicy: Always; remove it");
  }
}

void check_image(const Field& image) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  const std::string text = image.text();
  if (text.empty() || (!is_space(text.front()) && !is_space(text.back()))) return;
  image.expected("no space at its ends");
}

void check_container(const Field& container) {
  check_form(container["name"], api::dns_label_expected);
  check_image(container["image"]);
  const std::string restart = container["restartPolicy"].text();
  if (!restart.empty() && restart != "Always" && restart != "OnFailure" && restart != "Never") {
    container["restartPolicy"].expected("Always, OnFailure or Never");
  }
  check_unique(container["volumeMounts"], "mountPath");
  check_unique(container["ports"], "name");
  for (const Field& port : container["ports"].list()) check_port_name(port["name"]);
  for (const char* probe : {"livenessProbe", "startupProbe"}) {
    const Field successes = container[probe]["successThreshold"];
    if (successes.number().value_or(1) > 1) successes.expected("1");
  }
  const Field grace = container["readinessProbe"]["terminationGracePeriodSeconds"];
  if (grace.is_there()) grace.add("is not for readiness probes; remove it");
  for (const Field& mount : container["volumeMounts"].list()) {
    const Field propagation = mount["mountPropagation"];
    if (propagation.text() != "Bidirectional" || container["securityContext"]["privileged"].is_true()) continue;
    propagation.is(", which only privileged containers may have");
  }
}

void check_pod_spec(const Field& pod_spec) {
  check_labels(pod_spec["nodeSelector"]);
  for (const char* name : {"serviceAccountName", "runtimeClassName", "nodeName"}) {
    check_form(pod_spec[name], api::dns_subdomain_expected);
  }
  check_unique(pod_spec["volumes"], "name");
  check_unique(pod_spec["resourceClaims"], "name");
  if (const Field ephemeral = pod_spec["ephemeralContainers"]; !ephemeral.list().empty()) {
    ephemeral.add("are added to a pod that runs (kubectl debug), and cannot be in a template; remove them");
  }
  check_container_names(pod_spec);
  const bool is_host_network = pod_spec["hostNetwork"].is_true();
  HostPorts taken;
  for (const Field& container : pod_spec["containers"].list()) check_host_ports(container, is_host_network, taken);
  for (const Field& container : pod_spec["initContainers"].list()) check_init_container(container);
  const Field nameservers = pod_spec["dnsConfig"]["nameservers"];
  if (pod_spec["dnsPolicy"].text() == "None" && nameservers.list().empty()) {
    nameservers.add("is empty, and dnsPolicy None needs at least one");
  }
  if (const Field users = pod_spec["hostUsers"]; is_host_network && users.is_there() && !users.is_true()) {
    users.add("is false, which does not go with hostNetwork; remove one of the two");
  }
  if (pod_spec["shareProcessNamespace"].is_true() && pod_spec["hostPID"].is_true()) {
    pod_spec["shareProcessNamespace"].add("does not go with hostPID; remove one of the two");
  }
  std::set<std::pair<std::string, std::string>> spreads;
  for (const Field& constraint : pod_spec["topologySpreadConstraints"].list()) {
    if (spreads.emplace(constraint["topologyKey"].text(), constraint["whenUnsatisfiable"].text()).second) continue;
    constraint.add("has the topologyKey and whenUnsatisfiable of another; change or remove it");
  }
}

using Rule = std::function<void(const Field&)>;

Rule not_empty(const char* name) {
  return [name](const Field& map) { check_not_empty(map[name]); };
}
Rule one_of(std::vector<std::string> names) {
  return [names = std::move(names)](const Field& map) { check_one_of(map, names); };
}
Rule both(Rule first, Rule second) {
  return [first = std::move(first), second = std::move(second)](const Field& map) {
    first(map);
    second(map);
  };
}

// By the name of the type in pod_fields.yaml.
const std::map<std::string, Rule, std::less<>>& rules() {
  static const Rule default_mode = [](const Field& volume) { check_mode(volume["defaultMode"]); };
  static const Rule weight = [](const Field& term) { check_number(term["weight"], 1, kWeightMax); };
  static const std::map<std::string, Rule, std::less<>> made = {
      {"AppArmorProfile", check_profile},
      {"CSIVolumeSource", not_empty("driver")},
      {"ConfigMapEnvSource", check_object_name},
      {"ConfigMapKeySelector", check_key_of},
      {"ConfigMapProjection", not_empty("name")},
      {"ConfigMapVolumeSource", both(not_empty("name"), default_mode)},
      {"Container", check_container},
      {"ContainerPort", check_port},
      {"DownwardAPIVolumeFile", both(one_of({"fieldRef", "resourceFieldRef"}), check_file)},
      {"EmptyDirVolumeSource", check_empty_dir},
      {"EnvFromSource", one_of({"configMapRef", "secretRef"})},
      {"EnvVar", check_env},
      {"EnvVarSource", check_env_source},
      {"ExecAction", not_empty("command")},
      {"GRPCAction", check_action_port},
      {"HTTPGetAction", check_action_port},
      {"HostAlias", [](const Field& alias) { check_address(alias["ip"]); }},
      {"HostPathVolumeSource", check_host_path},
      {"KeyToPath", both(not_empty("key"), check_file)},
      {"LabelSelector", [](const Field& selector) { check_labels(selector["matchLabels"]); }},
      {"LabelSelectorRequirement", check_label_requirement},
      {"LifecycleHandler", check_lifecycle_handler},
      {"NFSVolumeSource", check_nfs},
      {"NodeSelector", check_node_selector},
      {"NodeSelectorTerm", check_node_selector_term},
      {"ObjectMeta", check_metadata},
      {"PersistentVolumeClaimSpec", check_claim_spec},
      {"PersistentVolumeClaimVolumeSource", not_empty("claimName")},
      {"PodAffinityTerm", check_pod_affinity_term},
      {"PodDNSConfig", check_dns},
      {"PodResourceClaim", one_of({"resourceClaimName", "resourceClaimTemplateName"})},
      {"PodSecurityContext", check_pod_security},
      {"PodSpec", check_pod_spec},
      {"PreferredSchedulingTerm", weight},
      {"Probe", check_probe},
      {"SeccompProfile", check_profile},
      {"SecretEnvSource", check_object_name},
      {"SecretKeySelector", check_key_of},
      {"SecretProjection", not_empty("name")},
      {"SecretVolumeSource", both(not_empty("secretName"), default_mode)},
      {"SecurityContext", check_security},
      {"TCPSocketAction", check_action_port},
      {"Toleration", check_toleration},
      {"TopologySpreadConstraint", check_topology_spread},
      {"Volume", check_volume},
      {"VolumeMount", check_mount},
      {"VolumeProjection", [](const Field& projection) { check_one_source(projection, "write two entries"); }},
      {"WeightedPodAffinityTerm", weight},
  };
  return made;
}

// --- resources

long double nano(const Field& amount) { return api::nano_units(amount.json()).value_or(0); }

// Where each was written: the trainer's come from resourcesPerNode or from the template.
struct Resources {
  std::map<std::string, Field> limits;
  std::map<std::string, Field> requests;

  // Adds those of one ResourceRequirements; they replace others of the same name.
  void add(const Field& resources) {
    for (auto* const kind : {&limits, &requests}) {
      for (const auto& [name, amount] : resources[kind == &limits ? "limits" : "requests"].members()) {
        if (amount.is_there()) kind->insert_or_assign(name, amount);
      }
    }
  }
};

bool is_huge_pages(const std::string& name) { return name.starts_with("hugepages-"); }
// A GPU, a network card, …: counted in whole pieces, and never more handed out than there are.
bool is_extended(const std::string& name) {
  return name.find('/') != std::string::npos && name.find("kubernetes.io/") == std::string::npos;
}

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

// True: nothing is wrong with it.
bool check_amount(const std::string& name, const Field& amount) {
  std::vector<std::string> expected;
  if (const std::string fault = resource_name_fault(name); !fault.empty()) {
    amount.add(fault);
    return false;
  }
  if (nano(amount) < 0) expected.emplace_back("at least 0");
  if (is_huge_pages(name)) {
    const long double page = api::nano_units(name.substr(std::string_view("hugepages-").size())).value_or(0);
    if (page > 0 && (nano(amount) <= 0 || std::fmod(nano(amount), page) != 0)) {
      expected.emplace_back("a multiple of the page's size");
    }
  }
  if (is_extended(name) && std::fmod(nano(amount), api::kNanoUnits) != 0) {
    expected.push_back("a whole number: " + name + " is not divided");
  }
  for (const std::string& what : expected) amount.expected(what);
  return expected.empty();
}

void check_resources(const Resources& resources) {
  bool are_valid = true;
  for (const auto* const kind : {&resources.limits, &resources.requests}) {
    for (const auto& [name, amount] : *kind) are_valid = check_amount(name, amount) && are_valid;
  }
  if (!are_valid) return;
  for (const auto& [name, request] : resources.requests) {
    const auto limit = resources.limits.find(name);
    const bool must_be_equal = is_extended(name) || is_huge_pages(name);
    if (limit == resources.limits.end()) {
      if (must_be_equal) {
        request.add("has no limit: write limits: {" + name + ": " + dump_line(request.json()) +
                    "}; the request follows from it");
      }
    } else if (must_be_equal && nano(request) != nano(limit->second)) {
      request.expected(dump_line(limit->second.json()) + " as in limits: " + name +
                       " has one number for both; remove the request");
    } else if (nano(request) > nano(limit->second)) {
      request.is(", above the limit of " + dump_line(limit->second.json()) + "; lower the request or raise the limit");
    }
  }
  const Field* pages = nullptr;
  bool has_others = false;
  for (const auto* const kind : {&resources.limits, &resources.requests}) {
    for (const auto& [name, amount] : *kind) {
      if (is_huge_pages(name) && pages == nullptr) pages = &amount;
      has_others = has_others || name == "cpu" || name == "memory";
    }
  }
  if (pages != nullptr && !has_others) pages->add("needs cpu or memory beside it");
}

// What containers claim is among the claims of the pod.
void check_claims(const Field& pod_spec, const Field& resources) {
  std::set<std::string> names;
  for (const Field& claim : pod_spec["resourceClaims"].list()) names.insert(claim["name"].text());
  for (const Field& claim : resources["claims"].list()) {
    if (names.contains(claim["name"].text())) continue;
    claim["name"].is(", which is not among resourceClaims of the template's spec");
  }
}

void check_all_resources(const api::TrainJobSpec& spec, std::vector<api::Problem>& problems) {
  const Field pod_spec = Field(spec.trainer.pod_template, std::string(train::kTemplatePath), problems)["spec"];
  const Field per_node(spec.trainer.resources_per_node, "spec.trainer.resourcesPerNode", problems);
  const int trainer = train::trainer_index(spec.trainer.pod_template);
  Resources of_trainer;
  for (const char* list : {"containers", "initContainers"}) {
    int index = 0;
    for (const Field& container : pod_spec[list].list()) {
      const bool is_trainer = list[0] == 'c' && index++ == trainer;
      const Field resources = container["resources"];
      Resources own;
      (is_trainer ? of_trainer : own).add(resources);
      check_resources(own);  // of the trainer: nothing
      // The trainer's claims are those of resourcesPerNode, where it has any.
      if (!is_trainer || !per_node["claims"].is_there()) check_claims(pod_spec, resources);
    }
  }
  of_trainer.add(per_node);
  check_claims(pod_spec, per_node);
  check_resources(of_trainer);
}

}  // namespace

std::vector<api::Problem> check_pod_values(const api::TrainJobSpec& spec) {
  std::vector<api::Problem> problems;
  const auto apply = [&](const std::string& type, const Json& value, const std::string& path) {
    const auto rule = rules().find(type);
    if (rule != rules().end()) rule->second(Field(value, path, problems));
  };
  const Json image = spec.trainer.image;
  check_image(Field(image, "spec.trainer.image", problems));
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
