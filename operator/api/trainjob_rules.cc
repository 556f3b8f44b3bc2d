#include "operator/api/trainjob_rules.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>

#include "operator/api/trainjob.h"

namespace lockstep::api {
namespace {

// Is the field absent from both objects, or present in both and equal?
bool same(const Json& self, const Json& stored, std::initializer_list<std::string_view> path) {
  const Json* now = field(self, path);
  const Json* before = field(stored, path);
  return now == nullptr || before == nullptr ? now == before : *now == *before;
}

std::map<std::string, Json> by_name(const Json& list) {
  std::map<std::string, Json> entries;
  for (const Json& entry : list) entries.emplace(entry.at("name").get<std::string>(), entry);
  return entries;
}

// As `same`, for a list of type `map`: the order of its entries does not matter.
bool same_env(const Json& self, const Json& stored) {
  const Json* now = field(self, {"env"});
  const Json* before = field(stored, {"env"});
  return now == nullptr || before == nullptr ? now == before : by_name(*now) == by_name(*before);
}

// Is the stored job suspended? By status.phase; before the operator has seen the job, by spec.suspend.
bool is_stopped(const Json& stored) {
  const Json* phase = field(stored, {"status", "phase"});
  return phase != nullptr ? *phase == "Suspended" : stored.at("spec").at("suspend").get<bool>();
}

bool unchanged(const Json& self, const Json& stored) { return self == stored; }

bool name_is_short(const Json& self, const Json& /*stored*/) {
  const Json* name = field(self, {"metadata", "name"});
  return name == nullptr || name->get_ref<const std::string&>().size() <= kJobNameMax;
}

bool name_is_label(const Json& self, const Json& /*stored*/) {
  const Json* found = field(self, {"metadata", "name"});
  if (found == nullptr) return true;
  const auto& name = found->get_ref<const std::string&>();
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name.front()) && name.back() != '-' &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c) || c == '-'; });
}

bool nodes_in_bounds(const Json& self, const Json& /*stored*/) {
  const Json* elastic = field(self, {"elastic"});
  if (elastic == nullptr) return true;
  const Json& nodes = self.at("trainer").at("numNodes");
  return nodes >= elastic->at("minNodes") && nodes <= elastic->at("maxNodes");
}

bool elastic_has_agent(const Json& self, const Json& /*stored*/) {
  return !self.contains("elastic") || self.at("trainer").at("launcher") == "Lockstep";
}

bool no_foreign_names(const Json& self, const Json& /*stored*/) {
  const Json* env = field(self, {"env"});
  if (self.at("launcher") == "Lockstep" || env == nullptr) return true;
  return std::none_of(env->begin(), env->end(), [](const Json& entry) {
    return std::find(kForeignNames.begin(), kForeignNames.end(), entry.at("name").get<std::string>()) !=
           kForeignNames.end();
  });
}

bool has_match_criterion(const Json& self, const Json& /*stored*/) {
  const auto has_entry = [&](const char* name) {
    const Json* list = field(self, {name});
    return list != nullptr && !list->empty();
  };
  return has_entry("exitCodes") || has_entry("podReasons");
}

bool claim_is_written(const Json& self, const Json& /*stored*/) {
  const Json* read_only = field(self, {"persistentVolumeClaim", "readOnly"});
  return read_only == nullptr || !read_only->get<bool>();
}

bool is_outside_shared_memory(const Json& self, const Json& /*stored*/) {
  const auto& path = self.get_ref<const std::string&>();
  return path != "/dev/shm" && path.rfind("/dev/shm/", 0) != 0;
}

// Fields that go into the pods may change only while the job is suspended and has no pods.
constexpr std::string_view kOrStopped =
    "(has(oldSelf.status) && has(oldSelf.status.phase) ? oldSelf.status.phase == 'Suspended' : oldSelf.spec.suspend)";
std::string or_stopped(std::string_view rule) { return std::string(rule).append(" || ").append(kOrStopped); }

std::map<std::string, RuleHolds, std::less<>> make_rules() {
  return {
      {"self == oldSelf", unchanged},
      // of the whole object
      {"self.metadata.name.size() <= 45", name_is_short},
      {"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", name_is_label},
      {or_stopped("self.spec.trainer.image == oldSelf.spec.trainer.image"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "image"}) || is_stopped(stored);
       }},
      {or_stopped("(has(self.spec.trainer.command) == has(oldSelf.spec.trainer.command) && "
                  "(!has(self.spec.trainer.command) || "
                  "self.spec.trainer.command == oldSelf.spec.trainer.command))"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "command"}) || is_stopped(stored);
       }},
      {or_stopped("(has(self.spec.trainer.args) == has(oldSelf.spec.trainer.args) && "
                  "(!has(self.spec.trainer.args) || self.spec.trainer.args == oldSelf.spec.trainer.args))"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "args"}) || is_stopped(stored);
       }},
      {or_stopped("(has(self.spec.trainer.env) == has(oldSelf.spec.trainer.env) && "
                  "(!has(self.spec.trainer.env) || self.spec.trainer.env == oldSelf.spec.trainer.env))"),
       [](const Json& self, const Json& stored) {
         return same_env(self.at("spec").at("trainer"), stored.at("spec").at("trainer")) || is_stopped(stored);
       }},
      {or_stopped("self.spec.trainer.numNodes == oldSelf.spec.trainer.numNodes || has(oldSelf.spec.elastic)"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "numNodes"}) || field(stored, {"spec", "elastic"}) != nullptr ||
                is_stopped(stored);
       }},
      {or_stopped("self.spec.trainer.numProcPerNode == oldSelf.spec.trainer.numProcPerNode"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "numProcPerNode"}) || is_stopped(stored);
       }},
      {or_stopped("(has(self.spec.trainer.resourcesPerNode) == has(oldSelf.spec.trainer.resourcesPerNode) && "
                  "(!has(self.spec.trainer.resourcesPerNode) || "
                  "self.spec.trainer.resourcesPerNode == oldSelf.spec.trainer.resourcesPerNode))"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "resourcesPerNode"}) || is_stopped(stored);
       }},
      {or_stopped("(has(self.spec.trainer.podTemplate) == has(oldSelf.spec.trainer.podTemplate) && "
                  "(!has(self.spec.trainer.podTemplate) || "
                  "self.spec.trainer.podTemplate == oldSelf.spec.trainer.podTemplate))"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "trainer", "podTemplate"}) || is_stopped(stored);
       }},
      {or_stopped("(has(self.spec.elastic) == has(oldSelf.spec.elastic) && "
                  "(!has(self.spec.elastic) || self.spec.elastic == oldSelf.spec.elastic))"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "elastic"}) || is_stopped(stored);
       }},
      {or_stopped("self.spec.scheduling == oldSelf.spec.scheduling"),
       [](const Json& self, const Json& stored) {
         return same(self, stored, {"spec", "scheduling"}) || is_stopped(stored);
       }},
      // of spec
      {"!has(self.elastic) || (self.trainer.numNodes >= self.elastic.minNodes && "
       "self.trainer.numNodes <= self.elastic.maxNodes)",
       nodes_in_bounds},
      {"!has(self.elastic) || self.trainer.launcher == 'Lockstep'", elastic_has_agent},
      {"has(self.checkpoint) == has(oldSelf.checkpoint)",
       [](const Json& self, const Json& stored) {
         return self.contains("checkpoint") == stored.contains("checkpoint");
       }},
      // of spec.trainer
      {"self.launcher == 'Lockstep' || !has(self.env) || self.env.all(e, !(e.name in ['MASTER_ADDR', 'MASTER_PORT', "
       "'NODE_RANK', 'NNODES', 'WORLD_SIZE', 'RANK', 'PET_NNODES', 'PET_NPROC_PER_NODE', 'PET_NODE_RANK', "
       "'PET_MASTER_ADDR', 'PET_MASTER_PORT']))",
       no_foreign_names},
      // of spec.trainer.env[]
      {"!self.startsWith('LOCKSTEP_')",
       [](const Json& self, const Json& /*stored*/) {
         return self.get_ref<const std::string&>().rfind("LOCKSTEP_", 0) != 0;
       }},
      {"!(has(self.value) && has(self.valueFrom))",
       [](const Json& self, const Json& /*stored*/) {
         return !(self.contains("value") && self.contains("valueFrom"));
       }},
      // of spec.elastic
      {"self.minNodes <= self.maxNodes",
       [](const Json& self, const Json& /*stored*/) { return self.at("minNodes") <= self.at("maxNodes"); }},
      // of spec.scheduling
      {"!has(self.queue) || self.gang == 'Volcano'",
       [](const Json& self, const Json& /*stored*/) {
         return !self.contains("queue") || self.at("gang") == "Volcano";
       }},
      {"!has(self.topology) || self.gang in ['None', 'Native']",
       [](const Json& self, const Json& /*stored*/) {
         return !self.contains("topology") || self.at("gang") == "None" || self.at("gang") == "Native";
       }},
      // of spec.restartPolicy.rules[]
      {"(has(self.exitCodes) && self.exitCodes.size() > 0) || (has(self.podReasons) && self.podReasons.size() > 0)",
       has_match_criterion},
      {"!(self.action == 'Fail' && self.avoidNode)",
       [](const Json& self, const Json& /*stored*/) {
         return !(self.at("action") == "Fail" && self.at("avoidNode").get<bool>());
       }},
      // of spec.checkpoint
      {"!has(self.persistentVolumeClaim) || !has(self.persistentVolumeClaim.readOnly) || "
       "!self.persistentVolumeClaim.readOnly",
       claim_is_written},
      {"self != '/dev/shm' && !self.startsWith('/dev/shm/')", is_outside_shared_memory},
  };
}

const std::map<std::string, RuleHolds, std::less<>>& rules() {
  static const auto made = make_rules();
  return made;
}

}  // namespace

RuleHolds restated_rule(std::string_view rule) {
  const auto it = rules().find(rule);
  return it == rules().end() ? nullptr : it->second;
}

std::vector<std::string_view> restated_rules() {
  std::vector<std::string_view> texts;
  for (const auto& [text, holds] : rules()) texts.emplace_back(text);
  return texts;
}

}  // namespace lockstep::api
