#include "operator/train/refusal.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "operator/api/quantity.h"
#include "operator/train/object_names.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

// A path such as spec.containers[0].resources.limits[nvidia.com/gpu], in steps: "spec", "containers", "[0]", ….
using Steps = std::vector<std::string>;

Steps steps_of(std::string_view path) {
  Steps steps;
  std::string step;
  const auto end_step = [&] {
    if (!step.empty()) steps.push_back(std::exchange(step, {}));
  };
  bool is_in_key = false;
  for (const char c : path) {
    if (c == '[' && !is_in_key) end_step();
    if (c == '.' && !is_in_key) {
      end_step();
      continue;
    }
    if (c == '[') is_in_key = true;
    step.push_back(c);
    if (c == ']') {
      is_in_key = false;
      end_step();
    }
  }
  end_step();
  return steps;
}

// The steps from `first` on, to be put behind another path.
std::string tail(const Steps& steps, size_t first) {
  std::string text;
  for (size_t i = first; i < steps.size(); ++i) {
    if (!steps[i].starts_with('[')) text.push_back('.');
    text.append(steps[i]);
  }
  return text;
}

std::optional<size_t> index_of(const Steps& steps, size_t at) {
  if (at >= steps.size() || !steps[at].starts_with('[')) return std::nullopt;
  const std::string_view step = steps[at];
  const std::optional<int64_t> index = parse_number(step.substr(1, step.size() - 2));
  return index && *index >= 0 ? std::optional(static_cast<size_t>(*index)) : std::nullopt;
}

std::string key_of(const std::string& step) { return step.starts_with('[') ? step.substr(1, step.size() - 2) : step; }

class Fields {
 public:
  Fields(const api::TrainJobSpec& spec, const Json& pod)
      : spec_(spec),
        pod_(pod),
        template_index_(trainer_index(spec.trainer.pod_template)),
        pod_index_(trainer_index(pod)),
        containers_(list_field(pod, {"spec", "containers"})),
        template_trainer_(template_trainer(spec)) {
    trainer_ = pod_index_ < 0 ? Json::object() : containers_[static_cast<size_t>(pod_index_)];
  }

  // What the user calls the field.
  [[nodiscard]] std::string name_of(const std::string& path) const {
    const Steps steps = steps_of(path);
    if (path == "metadata.name" || path == "spec.subdomain" || path == "spec.hostname") return "metadata.name";
    if (steps.size() < 2 || steps[0] != "spec") return of_template(steps);
    const std::string& name = steps[1];
    if (name == "priorityClassName" && !spec_.scheduling.priority_class_name.empty()) {
      return "spec.scheduling.priorityClassName";
    }
    const std::optional<size_t> index = index_of(steps, 2);
    if (name == "containers" && index && static_cast<int>(*index) == pod_index_) return of_trainer(steps);
    if (name == "volumes" && index) return of_volume(steps, *index);
    return of_template(steps);
  }

 private:
  // What no field of the TrainJob has.
  [[nodiscard]] static std::string of_pod(const Steps& steps) { return "the pod's " + tail(steps, 0).substr(1); }

  // An entry of a list that the template lacks is not the user's.
  [[nodiscard]] std::string of_template(const Steps& steps) const {
    const Json* at = &spec_.trainer.pod_template;
    for (size_t i = 0; i < steps.size(); ++i) {
      const std::optional<size_t> index = index_of(steps, i);
      if (index && (at == nullptr || (at->is_array() && *index >= at->size()))) return of_pod(steps);
      if (at == nullptr) continue;
      if (index && at->is_array()) {
        at = &(*at)[*index];
      } else {
        const auto found = at->is_object() ? at->find(key_of(steps[i])) : at->end();
        at = found == at->end() ? nullptr : &*found;
      }
    }
    return std::string(kTemplatePath) + tail(steps, 0);
  }

  // steps: spec, containers, [index of the trainer], ….
  [[nodiscard]] std::string of_template_trainer(const Steps& steps) const {
    const std::string index = template_index_ < 0 ? std::string(kTrainerContainer) : std::to_string(template_index_);
    return std::string(kTemplatePath) + ".spec.containers[" + index + "]" + tail(steps, 3);
  }

  [[nodiscard]] std::string of_trainer(const Steps& steps) const {
    if (steps.size() < 4) return of_template_trainer(steps);
    const std::string& name = steps[3];
    const api::Trainer& fields = spec_.trainer;
    const bool is_field =
        name == "image" || (name == "command" && !fields.command.empty()) || (name == "args" && !fields.args.empty());
    if (is_field) return "spec.trainer" + tail(steps, 3);
    if (name == "resources") return of_resources(steps);
    const std::optional<size_t> index = index_of(steps, 4);
    if (!index) return of_template_trainer(steps);
    if (name == "env") return of_variable(steps, *index);
    const size_t of_user = list_field(template_trainer_, {name}).size();
    if (*index < of_user) return of_template_trainer(steps);
    if (name == "volumeMounts") return of_own_mount(steps, *index);
    return of_pod(steps);
  }

  // The field of the TrainJob takes precedence, name by name.
  [[nodiscard]] std::string of_resources(const Steps& steps) const {
    const auto has = [&](const Json& resources) {
      const Json* const section = steps.size() > 4 ? field(resources, {steps[4]}) : &resources;
      if (section == nullptr) return false;
      return steps.size() < 6 || !section->is_object() || section->contains(key_of(steps[5]));
    };
    const Json* const below = field(template_trainer_, {"resources"});
    if (!has(spec_.trainer.resources_per_node) && below != nullptr && has(*below)) return of_template_trainer(steps);
    return "spec.trainer.resourcesPerNode" + tail(steps, 4);
  }

  // In the order of desired_pod: the operator's, those of the template that no field replaces, those of the field.
  [[nodiscard]] std::string of_variable(const Steps& steps, size_t index) const {
    std::vector<size_t> kept;
    const Json& of_template = list_field(template_trainer_, {"env"});
    const std::vector<Json>& of_field = spec_.trainer.env;
    for (size_t i = 0; i < of_template.size(); ++i) {
      const bool is_replaced = std::any_of(of_field.begin(), of_field.end(), [&](const Json& other) {
        return text_field(other, {"name"}) == text_field(of_template[i], {"name"});
      });
      if (!is_replaced) kept.push_back(i);
    }
    const size_t all = list_field(trainer_, {"env"}).size();
    const size_t own = all - std::min(all, kept.size() + of_field.size());
    const auto numbered = [](size_t i) { return "[" + std::to_string(i) + "]"; };
    if (index < own || index >= all) return of_pod(steps);
    if (index >= own + kept.size()) return "spec.trainer.env" + numbered(index - own - kept.size()) + tail(steps, 5);
    Steps of_users = steps;
    of_users[4] = numbered(kept[index - own]);
    return of_template_trainer(of_users);
  }

  [[nodiscard]] std::string of_own_mount(const Steps& steps, size_t index) const {
    const Json& mounts = list_field(trainer_, {"volumeMounts"});
    const std::string name = index < mounts.size() ? text_field(mounts[index], {"name"}) : std::string();
    if (name == kCheckpointVolume) return "spec.checkpoint.mountPath";
    return of_pod(steps);
  }

  [[nodiscard]] std::string of_volume(const Steps& steps, size_t index) const {
    const Json& volumes = list_field(pod_, {"spec", "volumes"});
    const std::string name = index < volumes.size() ? text_field(volumes[index], {"name"}) : std::string();
    if (name == kCheckpointVolume) return "spec.checkpoint.volume" + tail(steps, 3);
    return of_template(steps);
  }

  const api::TrainJobSpec& spec_;
  const Json& pod_;
  int template_index_;
  int pod_index_;
  const Json& containers_;
  const Json& template_trainer_;
  Json trainer_;
};

void collect_values(const Json& value, std::set<std::string>& texts) {
  if (value.is_structured()) {
    for (const Json& member : value) collect_values(member, texts);
  } else {
    texts.insert(value.is_string() ? value.get<std::string>() : dump_line(value));
  }
}

// Values that the words call invalid, or a limit: `Invalid value: "700m"`, `cpu limit of 500m`.
std::vector<std::string> values_named(const std::string& words) {
  std::vector<std::string> values;
  const auto find_all = [&](std::string_view before, std::string_view ends) {
    for (size_t at = words.find(before); at != std::string::npos; at = words.find(before, at)) {
      at += before.size();
      const std::string value = words.substr(at, words.find_first_of(ends, at) - at);
      const bool is_plain = !value.empty() && value.find_first_of("{}[]\\") == std::string::npos;
      if (is_plain && std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
  };
  find_all("Invalid value: \"", "\"");
  find_all(" limit of ", " ,;:)]");
  return values;
}

// Those that are nowhere in the pod that was sent.
std::vector<std::string> foreign_values(const std::string& words, const Json& pod) {
  std::set<std::string> texts;
  collect_values(pod, texts);
  std::set<std::string> resources;
  for (const Json& container : list_field(pod, {"spec", "containers"})) {
    if (const Json* found = field(container, {"resources"})) collect_values(*found, resources);
  }
  const auto is_sent = [&](const std::string& value) {
    if (texts.count(value) > 0) return true;
    const std::optional<long double> wanted = api::nano_units(value);  // 500m and 0.5 are the same
    return wanted && std::any_of(resources.begin(), resources.end(),
                                 [&](const std::string& text) { return api::nano_units(text) == wanted; });
  };
  std::vector<std::string> foreign;
  for (std::string& value : values_named(words)) {
    if (!is_sent(value)) foreign.push_back(std::move(value));
  }
  return foreign;
}

bool has(const std::string& words, std::string_view text) { return words.find(text) != std::string::npos; }

bool mounts_own_shared_memory(const Json& pod) {
  const Json& volumes = list_field(pod, {"spec", "volumes"});
  return std::any_of(volumes.begin(), volumes.end(),
                     [](const Json& volume) { return text_field(volume, {"name"}) == kSharedMemoryVolume; });
}

std::string where_it_comes_from(const std::string& words, const Json& pod) {
  if (has(words, "mountPath: Invalid value: \"/dev/shm\"") && mounts_own_shared_memory(pod)) {
    return "; the operator mounts its volume lockstep-shm on /dev/shm, and an admission of this cluster (a policy or a "
           "webhook) mounts another one there: set spec.trainer.sharedMemory: None";
  }
  if (has(words, " usage per Container is ") || has(words, " usage per Pod is ")) {
    return "; that is a LimitRange of the namespace (kubectl describe limitrange)";
  }
  const std::vector<std::string> foreign = foreign_values(words, pod);
  if (foreign.empty()) return {};
  std::string text;
  for (const std::string& value : foreign) text.append(text.empty() ? "; " : " and ").append(value);
  text.append(foreign.size() == 1 ? " is" : " are");
  return text + " not in the TrainJob: a LimitRange of the namespace, or a webhook or policy, has set " +
         (foreign.size() == 1 ? "it" : "them");
}

}  // namespace

size_t path_length(std::string_view text) {
  if (!text.starts_with("spec.") && !text.starts_with("metadata.")) return 0;
  bool is_in_key = false;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (is_in_key) {
      is_in_key = c != ']';
    } else if (c == '[') {
      is_in_key = true;
    } else if (std::string_view(" :,\")]").find(c) != std::string_view::npos) {
      break;
    }
  }
  while (at > 0 && text[at - 1] == '.') --at;
  return at;
}

std::string in_words_of_the_spec(const std::string& words, const api::TrainJobSpec& spec, const Json& pod) {
  const Fields fields(spec, pod);
  // A path of the pod begins with one of these, after a space, a quote or a bracket; in what Go says of a value of
  // another type, after the name of the type: "Go struct field PodSecurityContext.spec.securityContext.runAsUser".
  constexpr std::string_view kGoField = "Go struct field ";
  std::string text;
  for (size_t at = 0; at < words.size();) {
    std::string_view rest = std::string_view(words).substr(at);
    if (rest.starts_with(kGoField)) {
      const size_t dot = rest.find('.');
      text.append("field ");
      at += dot == std::string_view::npos ? kGoField.size() : dot + 1;
      rest = std::string_view(words).substr(at);
    } else if (at != 0 && kBeforePath.find(words[at - 1]) == std::string_view::npos) {
      text.push_back(words[at++]);
      continue;
    }
    const size_t length = path_length(rest);
    if (length == 0) {
      if (at < words.size()) text.push_back(words[at++]);
      continue;
    }
    text.append(fields.name_of(std::string(rest.substr(0, length))));
    at += length;
  }
  return text + where_it_comes_from(words, pod);
}

}  // namespace lockstep::train
