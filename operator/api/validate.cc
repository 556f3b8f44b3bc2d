#include "operator/api/validate.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "operator/api/crd.h"
#include "operator/api/label_text.h"
#include "operator/api/trainjob.h"
#include "operator/api/trainjob_rules.h"

namespace lockstep::api {
namespace {

// The fields of metav1.ObjectMeta: every kind has them, and no CRD lists them.
constexpr std::array kMetadataFields = {"annotations",
                                        "creationTimestamp",
                                        "deletionGracePeriodSeconds",
                                        "deletionTimestamp",
                                        "finalizers",
                                        "generateName",
                                        "generation",
                                        "labels",
                                        "managedFields",
                                        "name",
                                        "namespace",
                                        "ownerReferences",
                                        "resourceVersion",
                                        "selfLink",
                                        "uid"};

void check_kind(const Json& trainjob, std::vector<Problem>& problems) {
  const std::array<std::pair<const char*, std::string_view>, 2> expected = {
      {{"apiVersion", kApiVersion}, {"kind", kKind}}};
  for (const auto& [name, text] : expected) {
    if (text_field(trainjob, {name}) == text) continue;
    const auto it = trainjob.find(name);
    std::string message = it == trainjob.end() ? "is missing" : "is " + dump_line(*it);
    problems.push_back({name, message.append(", expected ").append(text)});
  }
}

void check_strings(const Json& metadata, const char* field, std::vector<Problem>& problems) {
  const auto it = metadata.find(field);
  if (it == metadata.end() || it->is_null()) return;
  const std::string path = field_below("metadata", field);
  if (!it->is_object()) {
    problems.push_back({path, "is " + dump_line(*it) + ", expected names with values"});
    return;
  }
  for (const auto& [name, value] : it->items()) {
    std::string fault;
    if (!value.is_string()) {
      fault = "is " + dump_line(value) + ", expected a string (in quotes, where it looks like something else)";
    } else if (std::string_view(field) == "labels") {
      fault = label_fault(name, value.get_ref<const std::string&>());
    } else {
      fault = annotation_fault(name);
    }
    if (!fault.empty()) problems.push_back({field_below(path, name), std::move(fault)});
  }
}

// The schema has only the type of metadata.name; the other fields of metadata are checked here.
void check_metadata(const Json& trainjob, std::vector<Problem>& problems) {
  const auto metadata = trainjob.find("metadata");
  if (metadata == trainjob.end() || !metadata->is_object()) {
    problems.push_back({"metadata", "expected an object with at least name"});
    return;
  }
  const auto has = [&](const char* name) { return metadata->contains(name) && !metadata->at(name).is_null(); };
  if (!has("name") && !has("generateName")) {
    problems.push_back({"metadata.name", "is missing, and has no default"});
  }
  const std::vector<std::string> known(kMetadataFields.begin(), kMetadataFields.end());
  for (const auto& [name, value] : metadata->items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    problems.push_back({field_below("metadata", name), "is not a field of metadata" + did_you_mean(name, known)});
  }
  check_strings(*metadata, "labels", problems);
  check_strings(*metadata, "annotations", problems);
}

// Runs the rules of a schema and of all below it.
class RuleCheck {
 public:
  explicit RuleCheck(std::vector<Problem>& problems) : problems_(problems) {}

  void check(const Schema& schema, const Json& value, const std::string& path) {
    for (const CelRule& rule : schema.rules) {
      if (rule.compares_with_stored()) continue;
      const RuleHolds holds = restated_rule(rule.rule);
      LOCKSTEP_CHECK(holds != nullptr, rule.rule.c_str());  // crd_test finds it first
      if (!holds(value)) add(rule, path);
    }
    if (value.is_object()) {
      for (const auto& [name, entry] : value.items()) {
        const auto it = schema.properties.find(name);
        const Schema* below = it != schema.properties.end() ? &it->second : schema.additional.get();
        if (below != nullptr) check(*below, entry, field_below(path, name));
      }
    } else if (value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) check(*schema.items, value[i], field_below(path, i));
    }
  }

 private:
  void add(const CelRule& rule, const std::string& path) {
    std::string field = path + rule.field_path;
    if (path.empty() && !field.empty()) field.erase(0, 1);  // ".metadata.name"
    problems_.push_back({std::move(field), rule.message});
  }

  std::vector<Problem>& problems_;
};

void check_own_structure(const Schema& schema, const Json& complete, std::vector<Problem>& problems) {
  for (Problem& problem : check_structure(schema, complete, "")) {
    // check_metadata reports everything about metadata except the type of its name.
    const bool is_of_metadata = problem.field == "metadata" || problem.field.rfind("metadata.", 0) == 0;
    if (!is_of_metadata || problem.field == "metadata.name") problems.push_back(std::move(problem));
  }
}

}  // namespace

std::vector<Problem> validate_by(const Schema& schema, const Json& trainjob) {
  if (!trainjob.is_object()) return {{"", "a TrainJob is an object with apiVersion, kind, metadata and spec"}};
  std::vector<Problem> problems;
  check_kind(trainjob, problems);
  check_metadata(trainjob, problems);
  Json complete = trainjob;
  apply_defaults(schema, complete);
  check_own_structure(schema, complete, problems);
  if (problems.empty()) RuleCheck(problems).check(schema, complete, "");
  return problems;
}

std::vector<Problem> validate(const Json& trainjob) { return validate_by(trainjob_schema(), trainjob); }

}  // namespace lockstep::api
