#include "operator/train/plan_disruption.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "operator/kube/resource.h"
#include "operator/train/desired_disruption_budget.h"
#include "operator/train/plan_gang.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"

namespace lockstep::train {
namespace {

using api::ConditionStatus;

constexpr std::string_view kBudgetStarting = "BudgetStarting";

const kube::Resource& budget_kind() { return kube::kDisruptionBudgets.front(); }

const OptionalKind* budgets(const PlanState& state) { return state.find_kind(budget_kind().crd_name()); }

const Json* find_budget(const PlanState& state) { return state.find_own(budgets(state), state.observed.job.meta.name); }

// Why the job wants no budget now; nullopt: it wants one. Kubernetes would count the missing pods as unavailable, and
// refuse every eviction.
std::optional<Obstacle> why_no_budget(const PlanState& state) {
  const std::string none = "There is no PodDisruptionBudget: ";
  const auto& conditions = state.status.conditions;
  if (state.spec.disruption.budget == api::DisruptionBudget::kNone) {
    return Obstacle{"NotRequested", none + "spec.disruption.budget is None."};
  }
  if (conditions.is_true(api::condition::kComplete) || conditions.is_true(api::condition::kFailed)) {
    return Obstacle{"Finished", none + "the job has finished."};
  }
  if (state.suspend.forbids_pods()) return Obstacle{"Suspended", none + "the job may have no pods now."};
  const bool gave_its_pods_back = state.book.placement.again_at > state.now;
  const int wanted = gave_its_pods_back ? 0 : num_creatable_pods(state) - static_cast<int>(state.book.done.size());
  if (wanted >= state.observed.wanted_pods) return std::nullopt;
  return Obstacle{"FewerPodsWanted", none + "the job wants " + plural(wanted, "pod") + " now, and numNodes is " +
                                         std::to_string(state.observed.wanted_pods) + "."};
}

std::string name_of_budget(const PlanState& state) { return budget_kind().kind + " " + state.observed.job.meta.name; }

// As the budget is after this plan, if nobody refuses it.
ConditionState condition_of(const PlanState& state) {
  const std::string name = name_of_budget(state);
  const OptionalKind* const kind = budgets(state);
  if (kind != nullptr && !kind->trouble.empty()) {
    return {ConditionStatus::kFalse, "BudgetUnavailable", name + " cannot be made: " + kind->trouble};
  }
  if (kind == nullptr || !kind->is_complete) {
    return {ConditionStatus::kFalse, std::string(kBudgetStarting), "The PodDisruptionBudgets are being read."};
  }
  const CreateProblem* const refusal = state.problem_of(name_of_budget(state));
  if (find_budget(state) == nullptr && refusal != nullptr) {
    return {ConditionStatus::kFalse, refusal->reason, name + " cannot be made: " + refusal->message};
  }
  return {ConditionStatus::kTrue, "OneAtATime", "At most one pod at a time may be evicted (" + name + ")."};
}

void write_condition(PlanState& state, const std::optional<Obstacle>& why_not) {
  const std::string before = state.status.conditions.reason_of(api::condition::kDisruptionBudget);
  if (why_not) {
    if (before.empty() && state.spec.disruption.budget == api::DisruptionBudget::kNone) return;
    return state.set(api::condition::kDisruptionBudget, ConditionStatus::kFalse, why_not->reason, why_not->message);
  }
  const ConditionState now = condition_of(state);
  state.set(api::condition::kDisruptionBudget, now);
  const bool is_trouble = now.status == ConditionStatus::kFalse && now.reason != kBudgetStarting;
  if (is_trouble && now.reason != before) state.event(true, now.reason, now.message, "Protect");
}

void create(PlanState& state) {
  if (const CreateProblem* const refusal = state.problem_of(name_of_budget(state))) {
    const api::UnixSeconds again = try_again_at(*refusal);
    state.requeue(std::max(again, state.now + 1));
    if (state.now < again) return;
  }
  state.act(CreateObject{desired_disruption_budget(state.observed.job)}, "spec.disruption.budget is OneAtATime");
}

void restore(PlanState& state, const Json& budget) {
  Json desired = desired_disruption_budget(state.observed.job);
  const Json* const spec = field(budget, {"spec"});
  if (spec == nullptr || *spec != desired["spec"]) state.act(ApplyObject{std::move(desired)}, "somebody changed it");
}

}  // namespace

void keep_disruption_budget(PlanState& state) {
  const std::optional<Obstacle> why_not = why_no_budget(state);
  write_condition(state, why_not);
  const OptionalKind* const kind = budgets(state);
  if (kind == nullptr || !kind->is_complete) {
    if (!why_not) state.requeue(state.now + kTryAgainSeconds);
    return;
  }
  const Json* const budget = find_budget(state);
  if (budget == nullptr) {
    if (!why_not) create(state);
    return;
  }
  const api::ObjectMeta meta = api::meta_of(*budget);
  if (meta.deletion_time) return;
  if (!why_not) return restore(state, *budget);
  state.act(DeleteObject{kind->api_version, budget_kind().kind, meta.name, meta.uid}, why_not->message);
}

}  // namespace lockstep::train
