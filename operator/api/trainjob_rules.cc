#include "operator/api/trainjob_rules.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "operator/api/trainjob.h"

namespace lockstep::api {
namespace {

bool name_is_short(const Json& self) {
  const Json* name = field(self, {"metadata", "name"});
  return name == nullptr || name->get_ref<const std::string&>().size() <= kJobNameMax;
}

bool name_is_label(const Json& self) {
  const Json* found = field(self, {"metadata", "name"});
  if (found == nullptr) return true;
  const auto& name = found->get_ref<const std::string&>();
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name.front()) && name.back() != '-' &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c) || c == '-'; });
}

bool nodes_in_bounds(const Json& self) {
  const Json* elastic = field(self, {"elastic"});
  if (elastic == nullptr) return true;
  const Json& nodes = self.at("trainer").at("numNodes");
  return nodes >= elastic->at("minNodes") && nodes <= elastic->at("maxNodes");
}

bool elastic_has_agent(const Json& self) {
  return !self.contains("elastic") || self.at("trainer").at("launcher") == "Lockstep";
}

bool no_foreign_names(const Json& self) {
  const Json* env = field(self, {"env"});
  if (self.at("launcher") == "Lockstep" || env == nullptr) return true;
  return std::none_of(env->begin(), env->end(), [](const Json& entry) {
    return std::find(kForeignNames.begin(), kForeignNames.end(), entry.at("name").get<std::string>()) !=
           kForeignNames.end();
  });
}

bool has_match_criterion(const Json& self) {
  const auto has_entry = [&](const char* name) {
    const Json* list = field(self, {name});
    return list != nullptr && !list->empty();
  };
  return has_entry("exitCodes") || has_entry("podReasons");
}

bool claim_is_written(const Json& self) {
  const Json* read_only = field(self, {"persistentVolumeClaim", "readOnly"});
  return read_only == nullptr || !read_only->get<bool>();
}

bool is_outside_shared_memory(const Json& self) {
  // Slashes twice and "." change nothing: /dev//shm/x is in it.
  std::string path = "/";
  std::istringstream names(self.get<std::string>());
  for (std::string name; std::getline(names, name, '/');) {
    if (!name.empty() && name != ".") path.append(name).append("/");
  }
  return path.rfind("/dev/shm/", 0) != 0;
}

std::map<std::string, RuleHolds, std::less<>> make_rules() {
  return {
      // of the whole object
      {"self.metadata.name.size() <= 45", name_is_short},
      {"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", name_is_label},
      // of spec
      {"!has(self.elastic) || (self.trainer.numNodes >= self.elastic.minNodes && "
       "self.trainer.numNodes <= self.elastic.maxNodes)",
       nodes_in_bounds},
      {"!has(self.elastic) || self.trainer.launcher == 'Lockstep'", elastic_has_agent},
      // of spec.trainer
      {"self.launcher == 'Lockstep' || !has(self.env) || self.env.all(e, !(e.name in ['MASTER_ADDR', 'MASTER_PORT', "
       "'NODE_RANK', 'NNODES', 'WORLD_SIZE', 'RANK', 'PET_NNODES', 'PET_NPROC_PER_NODE', 'PET_NODE_RANK', "
       "'PET_MASTER_ADDR', 'PET_MASTER_PORT']))",
       no_foreign_names},
      {"self.statusPort != self.coordinatorPort",
       [](const Json& self) { return self.at("statusPort") != self.at("coordinatorPort"); }},
      // of spec.trainer.env[]
      {"!self.startsWith('LOCKSTEP_')",
       [](const Json& self) { return self.get_ref<const std::string&>().rfind("LOCKSTEP_", 0) != 0; }},
      {"!(has(self.value) && has(self.valueFrom))",
       [](const Json& self) { return !(self.contains("value") && self.contains("valueFrom")); }},
      // of spec.elastic
      {"self.minNodes <= self.maxNodes", [](const Json& self) { return self.at("minNodes") <= self.at("maxNodes"); }},
      // of spec.scheduling
      {"!has(self.queue) || self.gang == 'Volcano'",
       [](const Json& self) { return !self.contains("queue") || self.at("gang") == "Volcano"; }},
      {"!has(self.topology) || self.gang in ['None', 'Native']",
       [](const Json& self) {
         return !self.contains("topology") || self.at("gang") == "None" || self.at("gang") == "Native";
       }},
      // of spec.restartPolicy.rules[]
      {"(has(self.exitCodes) && self.exitCodes.size() > 0) || (has(self.podReasons) && self.podReasons.size() > 0)",
       has_match_criterion},
      {"!(self.action == 'Fail' && self.avoidNode)",
       [](const Json& self) { return !(self.at("action") == "Fail" && self.at("avoidNode").get<bool>()); }},
      // of spec.checkpoint
      {"!has(self.persistentVolumeClaim) || !has(self.persistentVolumeClaim.readOnly) || "
       "!self.persistentVolumeClaim.readOnly",
       claim_is_written},
      {"!self.matches('^/([.]?/)*dev/([.]?/)*shm(/|$)')", is_outside_shared_memory},
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
