#include "operator/api/condition.h"

#include <algorithm>

namespace lockstep::api {
namespace {

ConditionStatus status_of_word(std::string_view word) {
  if (word == "True") return ConditionStatus::kTrue;
  if (word == "False") return ConditionStatus::kFalse;
  return ConditionStatus::kUnknown;
}

}  // namespace

const char* to_string(ConditionStatus status) {
  switch (status) {
    case ConditionStatus::kTrue:
      return "True";
    case ConditionStatus::kFalse:
      return "False";
    case ConditionStatus::kUnknown:
      return "Unknown";
  }
  return "Unknown";
}

const Condition* Conditions::find(std::string_view type) const {
  const auto it = std::find_if(list_.begin(), list_.end(), [&](const Condition& c) { return c.type == type; });
  return it == list_.end() ? nullptr : &*it;
}

bool Conditions::is_true(std::string_view type) const {
  const Condition* condition = find(type);
  return condition != nullptr && condition->status == ConditionStatus::kTrue;
}

std::string Conditions::reason_of(std::string_view type) const {
  const Condition* condition = find(type);
  return condition == nullptr ? "" : condition->reason;
}

bool Conditions::set(Condition condition, UnixSeconds now) {
  const auto it =
      std::find_if(list_.begin(), list_.end(), [&](const Condition& c) { return c.type == condition.type; });
  if (it == list_.end()) {
    condition.last_transition_time = now;
    list_.push_back(std::move(condition));
    return true;
  }
  condition.last_transition_time = it->status == condition.status ? it->last_transition_time : now;
  if (*it == condition) return false;
  *it = std::move(condition);
  return true;
}

Json to_json(const Conditions& conditions) {
  Json list = Json::array();
  for (const Condition& c : conditions.list()) {
    Json entry = {{"type", c.type},
                  {"status", to_string(c.status)},
                  {"reason", c.reason},
                  {"message", c.message},
                  {"lastTransitionTime", format_time(c.last_transition_time)}};
    if (c.observed_generation != 0) entry["observedGeneration"] = c.observed_generation;
    list.push_back(std::move(entry));
  }
  return list;
}

Conditions conditions_from_json(const Json& list) {
  Conditions conditions;
  if (!list.is_array()) return conditions;
  for (const Json& entry : list) {
    if (!entry.is_object()) continue;
    // Each type is new here, so set() keeps the time that it is given: the stored lastTransitionTime.
    conditions.set({.type = text_field(entry, {"type"}),
                    .status = status_of_word(text_field(entry, {"status"})),
                    .reason = text_field(entry, {"reason"}),
                    .message = text_field(entry, {"message"}),
                    .observed_generation = number_field(entry, {"observedGeneration"}).value_or(0)},
                   parse_time(text_field(entry, {"lastTransitionTime"})).value_or(0));
  }
  return conditions;
}

}  // namespace lockstep::api
