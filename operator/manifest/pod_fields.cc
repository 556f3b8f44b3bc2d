#include "operator/manifest/pod_fields.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "operator/api/quantity.h"
#include "operator/api/yaml.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"

namespace lockstep::manifest {
namespace {

using api::field_below;

struct FieldType {
  std::string name;      // "string", "Container", …
  bool is_list = false;  // [name]
  bool is_map = false;   // {name}
  bool is_required = false;
  std::vector<std::string> words;  // the only values; empty: any
};

using Fields = std::map<std::string, FieldType>;
using Types = std::map<std::string, Fields>;

FieldType parse_type(std::string text) {
  FieldType type;
  if (text.ends_with('!')) {
    type.is_required = true;
    text.pop_back();
  }
  type.is_list = text.starts_with('[');
  type.is_map = text.starts_with('{');
  if (type.is_list || type.is_map) text = text.substr(1, text.size() - 2);
  std::istringstream words(text);
  words >> type.name;
  for (std::string word; words >> word;) type.words.push_back(word);
  return type;
}

// The YAML text is compiled into this program. If it cannot be read, the build is faulty; pod_fields_test finds that.
const Types& types() {
  static const Types made = [] {
    const auto yaml = api::parse_yaml(pod_fields_yaml(), "operator/manifest/pod_fields.yaml");
    LOCKSTEP_CHECK(yaml.ok(), yaml.ok() ? "" : yaml.error().message.c_str());
    Types all;
    for (const auto& [name, fields] : yaml->items()) {
      for (const auto& [member, type] : fields.items()) all[name].emplace(member, parse_type(type.get<std::string>()));
    }
    return all;
  }();
  return made;
}

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  constexpr size_t kShownMax = 80;
  std::string text = dump_line(value);
  return text.size() <= kShownMax ? text : std::string("a long ").append(value.type_name());
}

// "" when the value has the type.
std::string expected_of(const FieldType& type, const Json& value) {
  const bool is_whole = api::whole_number(value).has_value();
  if (type.name == "string") return value.is_string() ? "" : "a string (in quotes, where it looks like something else)";
  if (type.name == "integer") return is_whole ? "" : "a whole number";
  if (type.name == "boolean") return value.is_boolean() ? "" : "true or false";
  if (type.name == "intOrString") return is_whole || value.is_string() ? "" : "a whole number or a string";
  if (type.name == "quantity") return api::nano_units(value) ? "" : "a quantity such as 500m, 2 or 1.5Gi";
  if (type.name == "time") {
    const bool is_time = value.is_string() && api::parse_time(value.get_ref<const std::string&>()).has_value();
    return is_time ? "" : "a time such as 2026-11-21T10:00:00Z";
  }
  return {};
}

class FieldCheck {
 public:
  std::vector<api::Problem> problems() && { return std::move(problems_); }

  void add(const std::string& path, std::string message) { problems_.push_back({path, std::move(message)}); }

  // An object of a type; null counts as absent everywhere, as for the API server.
  void check_object(const std::string& type, const Json& value, const std::string& path) {
    const auto known = types().find(type);
    if (known == types().end()) return;  // "any"
    if (!value.is_object()) return add(path, "is " + shown(value) + ", expected an object");
    for (const auto& [name, member] : value.items()) {
      if (member.is_null()) continue;
      const auto found = known->second.find(name);
      if (found == known->second.end()) {
        add_unknown(known->second, type, name, path);
      } else {
        check_member(found->second, member, field_below(path, name));
      }
    }
    for (const auto& [name, member] : known->second) {
      const auto it = value.find(name);
      const bool is_there = it != value.end() && !it->is_null();
      const bool is_written_by_operator = type == "PodSpec" && name == "containers";
      if (member.is_required && !is_there && !is_written_by_operator) {
        add(field_below(path, name), "is missing, and has no default");
      }
    }
  }

 private:
  void check_member(const FieldType& type, const Json& value, const std::string& path) {
    if (type.is_list) {
      if (!value.is_array()) return add(path, "is " + shown(value) + ", expected a list");
      for (size_t i = 0; i < value.size(); ++i) check_value(type, value[i], field_below(path, i));
    } else if (type.is_map) {
      if (!value.is_object()) return add(path, "is " + shown(value) + ", expected names with values");
      for (const auto& [name, member] : value.items()) {
        if (!member.is_null()) check_value(type, member, field_below(path, name));
      }
    } else {
      check_value(type, value, path);
    }
  }

  void check_value(const FieldType& type, const Json& value, const std::string& path) {
    if (types().count(type.name) > 0) return check_object(type.name, value, path);
    if (const std::string expected = expected_of(type, value); !expected.empty()) {
      return add(path, "is " + shown(value) + ", expected " + expected);
    }
    if (type.words.empty() || !value.is_string()) return;
    const auto& word = value.get_ref<const std::string&>();
    if (word.empty() || std::find(type.words.begin(), type.words.end(), word) != type.words.end()) return;
    add(path, "is " + shown(value) + ", expected one of " + joined(type.words) + api::did_you_mean(word, type.words));
  }

  void add_unknown(const Fields& known, const std::string& type, const std::string& name, const std::string& path) {
    std::vector<std::string> names;
    for (const auto& [member, unused] : known) names.push_back(member);
    std::string message = "is not a field of a ";
    message.append(type).append(" of Kubernetes ").append(kPodFieldsVersion);
    add(field_below(path, name), message + api::did_you_mean(name, names));
  }

  std::vector<api::Problem> problems_;
};

// Checks that involve several fields: every container has an image, and mounts name volumes that exist.
void check_containers(const Json& pod_spec, const char* list, const std::string& path,
                      const std::set<std::string>& volumes, FieldCheck& check) {
  const Json& containers = list_field(pod_spec, {list});
  for (size_t i = 0; i < containers.size(); ++i) {
    const Json& container = containers[i];
    const std::string at = field_below(field_below(path, list), i);
    const bool is_trainer = text_field(container, {"name"}) == train::kTrainerContainer && list[0] == 'c';
    if (!is_trainer && text_field(container, {"image"}).empty()) {
      check.add(field_below(at, "image"), "is missing, and has no default");
    }
    const Json& mounts = list_field(container, {"volumeMounts"});
    for (size_t k = 0; k < mounts.size(); ++k) {
      const std::string name = text_field(mounts[k], {"name"});
      if (name.empty() || volumes.count(name) > 0) continue;
      std::string message = "is \"" + name + "\", which is not among the volumes of the template";
      const std::string nearest = nearest_name(name, {volumes.begin(), volumes.end()});
      if (!nearest.empty()) message.append("; did you mean \"").append(nearest).append("\"?");
      check.add(field_below(field_below(field_below(at, "volumeMounts"), k), "name"), std::move(message));
    }
  }
}

void check_template(const api::TrainJobSpec& spec, FieldCheck& check) {
  const Json& pod_template = spec.trainer.pod_template;
  if (!pod_template.is_object() || pod_template.empty()) return;
  const std::string path(train::kTemplatePath);
  check.check_object("PodTemplateSpec", pod_template, path);
  const Json* const pod_spec = field(pod_template, {"spec"});
  if (pod_spec == nullptr || !pod_spec->is_object()) return;
  std::set<std::string> volumes = {std::string(train::kCheckpointVolume)};
  if (spec.trainer.shared_memory == api::SharedMemory::kMemory) volumes.emplace(train::kSharedMemoryVolume);
  for (const Json& volume : list_field(*pod_spec, {"volumes"})) volumes.insert(text_field(volume, {"name"}));
  for (const char* list : {"containers", "initContainers"}) {
    check_containers(*pod_spec, list, path + ".spec", volumes, check);
  }
}

}  // namespace

void visit_objects(const std::string& type, const Json& value, const std::string& path, const VisitObject& visit) {
  const auto known = types().find(type);
  if (known == types().end() || !value.is_object()) return;
  visit(type, value, path);
  for (const auto& [name, member] : value.items()) {
    const auto found = known->second.find(name);
    if (found == known->second.end()) continue;
    const std::string at = field_below(path, name);
    if (found->second.is_list && member.is_array()) {
      for (size_t i = 0; i < member.size(); ++i) {
        visit_objects(found->second.name, member[i], field_below(at, i), visit);
      }
    } else if (!found->second.is_list && !found->second.is_map) {
      visit_objects(found->second.name, member, at, visit);
    }
  }
}

std::vector<api::Problem> check_pod_fields(const api::TrainJobSpec& spec) {
  FieldCheck check;
  check_template(spec, check);
  for (size_t i = 0; i < spec.trainer.env.size(); ++i) {
    check.check_object("EnvVar", spec.trainer.env[i], field_below("spec.trainer.env", i));
  }
  check.check_object("ResourceRequirements", spec.trainer.resources_per_node, "spec.trainer.resourcesPerNode");
  if (spec.checkpoint && spec.checkpoint->volume.is_object()) {
    Json volume = spec.checkpoint->volume;
    volume["name"] = std::string(train::kCheckpointVolume);
    check.check_object("Volume", volume, "spec.checkpoint.volume");
  }
  return std::move(check).problems();
}

}  // namespace lockstep::manifest
