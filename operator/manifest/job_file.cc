#include "operator/manifest/job_file.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "operator/api/defaults.h"
#include "operator/api/validate.h"
#include "operator/manifest/pod_fields.h"
#include "operator/manifest/pod_values.h"
#include "operator/train/desired_env.h"
#include "operator/train/desired_pod.h"
#include "operator/train/kueue_workload.h"
#include "operator/train/pod_template.h"
#include "runner/base/json.h"
#include "runner/base/nearest.h"

namespace lockstep::manifest {
namespace {

constexpr const char* kArgsField = "spec.trainer.args";

// One object of the text, and where its fields stand.
struct Item {
  const api::YamlDocument* document = nullptr;
  const OrderedJson* value = nullptr;
  std::string prefix;  // "items[2]" in a list

  [[nodiscard]] api::YamlPosition position_of(const std::string& field) const {
    if (prefix.empty()) return document->position_of(field);
    return document->position_of(field.empty() ? prefix : prefix + "." + field);
  }
};

void add_items(const api::YamlDocument& document, std::vector<Item>& items) {
  const OrderedJson& value = document.value;
  const auto kind = value.is_object() ? value.find("kind") : value.end();
  const auto list = value.is_object() ? value.find("items") : value.end();
  const bool is_list = kind != value.end() && kind->is_string() && list != value.end() && list->is_array() &&
                       kind->get_ref<const std::string&>().ends_with("List");
  if (!is_list) return items.push_back({&document, &value, ""});
  for (size_t i = 0; i < list->size(); ++i) items.push_back({&document, &(*list)[i], api::field_below("items", i)});
}

bool is_trainjob(const Json& object) {
  const std::string version = text_field(object, {"apiVersion"});
  return text_field(object, {"kind"}) == api::kKind ||
         version.substr(0, version.find('/')) == api::kGroup;  // another kind of our group can only be a typo
}

std::string name_of(const Json& object) {
  std::string name = text_field(object, {"metadata", "name"});
  if (name.empty()) name = text_field(object, {"metadata", "generateName"});
  const std::string ns = text_field(object, {"metadata", "namespace"});
  if (name.empty()) return "(without a name)";
  return ns.empty() ? name : ns + "/" + name;
}

class Findings {
 public:
  explicit Findings(const Item& item) : item_(item) {}

  void add(const std::string& field, std::string message) {
    found_.push_back({item_.position_of(field), field, std::move(message)});
  }
  // "spec.trainer.podTemplate.spec.hostname: is …" as the operator writes it.
  void add_line(const std::string& line) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) return add("", line);
    add(line.substr(0, colon), line.substr(colon + 2));
  }
  [[nodiscard]] bool empty() const { return found_.empty(); }
  std::vector<Finding> sorted() && {
    std::stable_sort(found_.begin(), found_.end(), [](const Finding& a, const Finding& b) {
      return std::pair(a.position.line, a.position.column) < std::pair(b.position.line, b.position.column);
    });
    return std::move(found_);
  }

 private:
  const Item& item_;
  std::vector<Finding> found_;
};

// The trainer's environment, as far as its values are in the file or the operator's.
struct TrainerEnvironment {
  std::map<std::string, std::string> values;
  std::map<std::string, std::string> fields;  // name → where the file gives it a value
  std::set<std::string> unknown;              // their values are known only in the pod
  bool has_unknown_names = false;             // envFrom
};

// As Kubernetes does it, a value may name variables before it: $(NAME).
void add_variables(const Json& list, const std::string& path, TrainerEnvironment& environment) {
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = text_field(list[i], {"name"});
    std::string value =
        expand_variables(text_field(list[i], {"value"}), [&](const std::string& other) -> std::optional<std::string> {
          const auto it = environment.values.find(other);
          return it == environment.values.end() ? std::nullopt : std::optional(it->second);
        });
    environment.values.erase(name);
    environment.unknown.erase(name);
    environment.fields[name] = api::field_below(path, i);
    if (list[i].contains("valueFrom") || value.find("$(") != std::string::npos) {
      environment.unknown.insert(name);
    } else {
      environment.values[name] = std::move(value);
    }
  }
}

TrainerEnvironment environment_of(const api::TrainJob& job) {
  TrainerEnvironment environment;
  for (const Json& variable : train::desired_env(job, train::num_proc_per_node(job.spec), "")) {
    environment.values[text_field(variable, {"name"})] = text_field(variable, {"value"});
  }
  if (const int index = train::trainer_index(job.spec.trainer.pod_template); index >= 0) {
    const std::string path = std::string(train::kTemplatePath) + ".spec.containers[" + std::to_string(index) + "]";
    const Json& trainer = train::template_trainer(job.spec);
    add_variables(list_field(trainer, {"env"}), path + ".env", environment);
    environment.has_unknown_names = !list_field(trainer, {"envFrom"}).empty();
  }
  add_variables(Json(job.spec.trainer.env), "spec.trainer.env", environment);
  return environment;
}

// The names in a message that are written as variables are.
std::vector<std::string> variables_in(const std::string& message) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_abcdefghijklmnopqrstuvwxyz";
  std::vector<std::string> names;
  for (size_t at = message.find_first_of(kLetters); at != std::string::npos;) {
    const size_t end = std::min(message.find_first_not_of(kLetters, at), message.size());
    names.push_back(message.substr(at, end - at));
    at = message.find_first_of(kLetters, end);
  }
  return names;
}

// Where the file gives a value to the first variable that the message names; nothing: the agent may still take it,
// because of a value that only the pod has.
std::optional<std::string> field_of_variable(const TrainerEnvironment& environment, const std::string& message) {
  std::optional<std::string> found;
  for (const std::string& name : variables_in(message)) {
    if (environment.unknown.contains(name)) return std::nullopt;
    const auto it = environment.fields.find(name);
    if (it != environment.fields.end() && !found) found = it->second;
  }
  return found;
}

// Checks only arguments and variables that are known here, and only when the pods certainly start our agent.
void check_trainer_args(const api::TrainJob& job, const CheckArgs& check_args, Findings& findings) {
  const api::TrainJobSpec& spec = job.spec;
  const api::Trainer& trainer = spec.trainer;
  const bool starts_agent = trainer.launcher == api::Launcher::kLockstep && trainer.command.empty();
  if (!check_args || !starts_agent || trainer.args.empty()) return;
  const TrainerEnvironment environment = environment_of(job);
  AgentCommand command{
      .arguments = {},
      .ranks = train::num_proc_per_node(spec) * (spec.elastic ? spec.elastic->max_nodes : trainer.num_nodes)};
  if (!environment.has_unknown_names) command.environment = environment.values;
  for (const std::string& arg : trainer.args) {
    command.arguments.push_back(expand_variables(arg, [&](const std::string& name) -> std::optional<std::string> {
      const auto it = environment.fields.contains(name) ? environment.values.find(name) : environment.values.end();
      return it == environment.values.end() ? std::nullopt : std::optional(it->second);
    }));
    if (command.arguments.back().find("$(") != std::string::npos) return;  // its value is known only in the pod
  }
  const std::optional<ArgumentProblem> problem = check_args(command);
  if (!problem) return;
  if (problem->is_of_environment) {
    const std::optional<std::string> field = field_of_variable(environment, problem->message);
    if (field) findings.add(*field, problem->message);
    return;
  }
  findings.add(problem->index ? api::field_below(kArgsField, *problem->index) : kArgsField, problem->message);
}

JobInFile read_job(const Item& item, const CheckArgs& check_args) {
  JobInFile result;
  result.written = Json(*item.value);
  result.name = name_of(result.written);
  Findings findings(item);
  if (const size_t bytes = dump_line(result.written).size(); bytes > kObjectBytesMax) {
    findings.add("", "is " + std::to_string(bytes) + " bytes as JSON; an API server stores at most " +
                         std::to_string(kObjectBytesMax));
  }
  for (const api::Problem& problem : api::validate(result.written)) findings.add(problem.field, problem.message);
  if (findings.empty()) {
    Json complete = result.written;
    api::apply_trainjob_defaults(complete);
    Result<api::TrainJob> job = api::trainjob_from_json(complete);
    if (!job.ok()) {
      findings.add_line(job.error().message);
    } else {
      if (const Status good = train::check_queue_labels(job->meta); !good.ok()) findings.add_line(good.error().message);
      if (const Status good = train::check_pod_template(job->spec); !good.ok()) findings.add_line(good.error().message);
      for (const api::Problem& problem : check_pod_fields(job->spec)) findings.add(problem.field, problem.message);
      if (findings.empty()) {
        for (const api::Problem& problem : check_pod_values(job->spec)) findings.add(problem.field, problem.message);
      }
      check_trainer_args(*job, check_args, findings);
      if (findings.empty()) result.job = *std::move(job);
    }
  }
  result.findings = std::move(findings).sorted();
  return result;
}

}  // namespace

std::string line_of(const std::string& file, const Finding& finding) {
  std::string line = file;
  line.append(":")
      .append(std::to_string(finding.position.line))
      .append(":")
      .append(std::to_string(finding.position.column));
  if (!finding.field.empty()) line.append(": ").append(finding.field);
  return line.append(": ").append(finding.message);
}

Result<JobFile> read_job_file(std::string_view text, const std::string& file, const CheckArgs& check_args) {
  TRY_ASSIGN(std::vector<api::YamlDocument> parsed, api::parse_manifests(text, file));
  const auto documents = std::make_shared<const std::vector<api::YamlDocument>>(std::move(parsed));
  std::vector<Item> items;
  for (const api::YamlDocument& document : *documents) add_items(document, items);
  JobFile result;
  for (const Item& item : items) {
    const Json object(*item.value);
    const std::string kind = text_field(object, {"kind"});
    if (!object.is_object() || kind.empty()) {
      const std::string what = object.is_object() ? "has no kind" : "is no object";
      return invalid(line_of(file, {item.position_of(""), "",
                                    what + "; expected a Kubernetes object, such as a TrainJob "
                                           "(apiVersion: lockstep.dev/v1, kind: TrainJob)"}));
    }
    if (is_trainjob(object)) {
      result.jobs.push_back(read_job(item, check_args));
      result.jobs.back().position_of = [documents, item](const std::string& field) { return item.position_of(field); };
    } else {
      result.others.push_back(kind + " " + name_of(object));
    }
  }
  return result;
}

std::string expand_variables(std::string_view text,
                             const std::function<std::optional<std::string>(const std::string& name)>& value_of) {
  std::string expanded;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("$$")) {
      expanded += '$';
      at += 2;
      continue;
    }
    const size_t end = rest.starts_with("$(") ? rest.find(')') : std::string_view::npos;
    if (end != std::string_view::npos) {
      const std::string_view reference = rest.substr(0, end + 1);
      const std::optional<std::string> value = value_of(std::string(reference.substr(2, end - 2)));
      expanded.append(value ? std::string_view(*value) : reference);
      at += end + 1;
      continue;
    }
    expanded += text[at++];
  }
  return expanded;
}

}  // namespace lockstep::manifest
