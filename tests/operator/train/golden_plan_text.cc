#include "tests/operator/train/golden_plan_text.h"

#include <algorithm>
#include <iterator>

#include "operator/api/yaml.h"

namespace lockstep::train {
namespace {

struct Words {
  static std::string name(const Json& object) { return api::meta_of(object).name; }

  std::string operator()(const LookUpPod& a) const { return "look up pod " + a.name; }
  std::string operator()(const CreateObject& a) const {
    return "create " + a.object.value("kind", "") + " " + name(a.object);
  }
  std::string operator()(const ApplyObject& a) const {
    return "apply " + a.object.value("kind", "") + " " + name(a.object);
  }
  std::string operator()(const DeleteObject& a) const { return "delete " + a.kind + " " + a.name; }
  std::string operator()(const SendNumNodes& a) const {
    return "send numNodes " + std::to_string(a.num_nodes) + " to pod 0 at " + a.ip;
  }
  std::string operator()(const StopServing& a) const { return "take pod " + a.name + " out of the Service"; }
  std::string operator()(const CreatePod& a) const {
    return "create pod " + a.name + (a.is_first ? ", the first" : "");
  }
  std::string operator()(const DeletePod& a) const { return "delete pod " + a.name; }
  std::string operator()(const DeleteJob&) const { return "delete the TrainJob"; }
  std::string operator()(const PatchObject& a) const {
    return (a.subresource.empty() ? "patch " : "patch the " + a.subresource + " of ") + a.kind + " " + a.name;
  }
};

std::optional<Json> object_of(const Observed& o, const Action& action) {
  if (const auto* create = std::get_if<CreateObject>(&action.what)) return create->object;
  if (const auto* apply = std::get_if<ApplyObject>(&action.what)) return apply->object;
  if (const auto* patch = std::get_if<PatchObject>(&action.what)) return patch->patch;
  if (const auto* create = std::get_if<CreatePod>(&action.what)) {
    const Result<Json> pod = desired_pod(o, create->parameters);
    if (pod.ok()) return *pod;
  }
  return std::nullopt;
}

OrderedJson changed_conditions(const api::Conditions& before, const api::Conditions& after) {
  OrderedJson changed = OrderedJson::object();
  for (const api::Condition& c : after.list()) {
    const api::Condition* const old = before.find(c.type);
    if (old != nullptr && old->status == c.status && old->reason == c.reason && old->message == c.message) continue;
    changed[c.type] = std::string(to_string(c.status)) + ", " + c.reason + ": " + c.message;
  }
  for (const api::Condition& c : before.list()) {
    if (after.find(c.type) == nullptr) changed[c.type] = nullptr;
  }
  return changed;
}

// The names of a list's entries, such as containers and variables; nothing where not each has one of its own.
std::optional<std::vector<std::string>> names_in(const Json& list) {
  std::vector<std::string> names;
  for (const Json& entry : list) {
    names.push_back(entry.is_object() ? entry.value("name", "") : "");
    if (names.back().empty() || std::count(names.begin(), names.end(), names.back()) > 1) return std::nullopt;
  }
  return names;
}

// Adds path and value of each difference; null: `after` does not have it.
void add_differences(const Json& before, const Json& after, const std::string& path, OrderedJson& found) {
  if (before == after) return;
  if (before.is_object() && after.is_object()) {
    const std::string prefix = path.empty() ? "" : path + ".";
    for (const auto& [name, value] : after.items()) {
      add_differences(before.contains(name) ? before[name] : Json(), value, prefix + name, found);
    }
    for (const auto& [name, value] : before.items()) {
      if (!after.contains(name)) found[prefix + name] = nullptr;
    }
    return;
  }
  const std::optional<std::vector<std::string>> old = names_in(before.is_array() ? before : Json());
  const std::optional<std::vector<std::string>> now = names_in(after.is_array() ? after : Json());
  if (!old || !now || old->empty() || now->empty()) {
    found[path] = OrderedJson::parse(after.dump());
    return;
  }
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::string> kept_before;
  std::vector<std::string> kept_after;
  std::copy_if(old->begin(), old->end(), std::back_inserter(kept_before), [&](const auto& n) { return has(*now, n); });
  std::copy_if(now->begin(), now->end(), std::back_inserter(kept_after), [&](const auto& n) { return has(*old, n); });
  if (kept_before != kept_after) {
    found[path] = OrderedJson::parse(after.dump());
    return;
  }
  for (size_t i = 0; i < now->size(); ++i) {
    const std::string& name = now->at(i);
    const auto at = std::find(old->begin(), old->end(), name);
    if (at != old->end()) {
      add_differences(before[static_cast<size_t>(at - old->begin())], after[i], path + "[" + name + "]", found);
      continue;
    }
    const std::string place = i == 0 ? ", first]" : ", after " + now->at(i - 1) + "]";
    add_differences({{"name", name}}, after[i], path + "[" + name + place, found);
  }
  for (const std::string& name : *old) {
    if (!has(*now, name)) found[path + "[" + name + "]"] = nullptr;
  }
}

OrderedJson changed_members(const Json& before, const Json& after) {
  OrderedJson changed = OrderedJson::object();
  for (const auto& [name, value] : after.items()) {
    if (!before.contains(name) || before[name] != value) changed[name] = OrderedJson::parse(value.dump());
  }
  for (const auto& [name, value] : before.items()) {
    if (!after.contains(name)) changed[name] = nullptr;
  }
  return changed;
}

OrderedJson status_text(const api::TrainJobStatus& before, const api::TrainJobStatus& after) {
  Json old = api::to_json(before);
  Json now = api::to_json(after);
  const Json old_book = old.value("bookkeeping", Json::object());
  const Json new_book = now.value("bookkeeping", Json::object());
  for (const char* apart : {"conditions", "bookkeeping"}) {
    old.erase(apart);
    now.erase(apart);
  }
  OrderedJson text = changed_members(old, now);
  if (OrderedJson c = changed_conditions(before.conditions, after.conditions); !c.empty()) text["conditions"] = c;
  if (OrderedJson b = changed_members(old_book, new_book); !b.empty()) text["bookkeeping"] = b;
  return text;
}

// Of the first object of its kind all, of others what differs from that one. A patch has no kind.
void add_object(const Json& object, UsualPlan& usual, OrderedJson& entry) {
  const std::string kind = object.value("kind", "");
  if (kind.empty() || usual.objects.emplace(kind, object).second) {
    entry["object"] = OrderedJson::parse(object.dump());
    return;
  }
  OrderedJson differences = OrderedJson::object();
  add_differences(usual.objects.at(kind), object, "", differences);
  entry["object, what differs from the usual one"] = differences;
}

}  // namespace

std::string words_of(const Action& action) { return std::visit(Words{}, action.what); }

UsualPlan::UsualPlan(const Plan& plan, const Observed& observed) : status(plan.status.value()) {
  for (const Action& action : plan.actions) {
    if (std::optional<Json> object = object_of(observed, action)) {
      const std::string kind = object->value("kind", "");
      objects.emplace(kind, *std::move(object));
    }
  }
}

std::string plan_text(const Plan& plan, const Observed& o, bool shows_objects, UsualPlan usual) {
  OrderedJson text = OrderedJson::object();
  text["why"] = plan.why;
  if (plan.status) {
    const bool is_new = !o.job.status.phase && usual.status.phase;
    const OrderedJson changes = status_text(is_new ? usual.status : o.job.status, *plan.status);
    if (!changes.empty()) {
      text[is_new ? "status, what differs from that of another new job" : "status, what changes"] = changes;
    }
    if (plan.status_wait_seconds > 0) text["status"] = "can wait " + std::to_string(plan.status_wait_seconds) + " s";
  } else {
    text["status"] = "not written";
  }
  for (const PlannedEvent& e : plan.events) {
    text["events"].push_back(std::string(e.is_warning ? "Warning " : "Normal ") + e.reason + " (" + e.action +
                             "): " + e.message);
  }
  for (const Measurement& m : plan.measurements) {
    std::string line(m.metric->name);
    for (const auto& [label, value] : m.labels) line += " " + label + "=" + value;
    text["measured"].push_back(line + ": " + std::to_string(static_cast<int64_t>(m.value)));
  }
  for (const Action& action : plan.actions) {
    OrderedJson entry = {{"do", words_of(action)}, {"because", action.why}};
    if (shows_objects) {
      if (const std::optional<Json> object = object_of(o, action)) add_object(*object, usual, entry);
    }
    text["actions"].push_back(std::move(entry));
  }
  if (plan.requeue_at) text["look again after seconds"] = *plan.requeue_at - o.now;
  return api::to_yaml(text);
}

}  // namespace lockstep::train
