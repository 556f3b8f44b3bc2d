#include "operator/train/plan_state.h"

#include <algorithm>

#include "operator/train/pod_group.h"
#include "operator/train/refusal.h"

namespace lockstep::train {
namespace {

// A create that a quota refused is tried again after 10 s, 20 s, 40 s, then once a minute.
constexpr api::UnixSeconds kQuotaWaitMaxSeconds = 60;
// A pod that the API server or an admission refused: after 10 s, 20 s, 40 s, …, then every ten minutes.
constexpr api::UnixSeconds kInvalidWaitMaxSeconds = 600;

api::UnixSeconds doubled_wait(int times, api::UnixSeconds longest) {
  constexpr int kDoublingsMax = 8;
  return std::min(kTryAgainSeconds << std::clamp(times - 1, 0, kDoublingsMax), longest);
}

}  // namespace

PlanState::PlanState(const Observed& picture)
    : observed(picture),
      spec(picture.job.spec),
      now(picture.now),
      status(picture.job.status),
      book(bookkeeping_from_json(picture.job.status.bookkeeping)) {}

const Hold* PlanState::active_hold() const {
  if (book.spec_hold) return &*book.spec_hold;
  return queue_hold ? &*queue_hold : nullptr;
}

bool PlanState::is_old(const PodView& pod) const {
  return pod.attempt < attempt_of(pod.node_rank) || pod.node_rank >= spec.trainer.num_nodes;
}

void PlanState::raise_attempt(int node_rank) {
  ++status.attempts[node_rank];
  book.created.erase(node_rank);
  book.done.erase(node_rank);
  if (node_rank < static_cast<int>(current.size())) {
    current[static_cast<size_t>(node_rank)] = nullptr;
    failed[static_cast<size_t>(node_rank)] = false;
  }
}

void PlanState::block_pods(Obstacle why) {
  if (!obstacle) obstacle = std::move(why);
}

// The server's words, with the spec's fields in place of the pod's. Except where it names a priority
// class of the spec: it does not know by which field.
Obstacle PlanState::obstacle_of(const CreateProblem& problem) const {
  if (problem.reason == kInvalidSpec) {
    return {problem.reason, refusal_text(observed, problem.message, problem.node_rank, attempt_of(problem.node_rank),
                                         problem.is_by_admission)};
  }
  const PriorityClassName of_spec = priority_class_of(spec);
  const bool is_of_spec = problem.reason == kPriorityClassMissing && !of_spec.name.empty() &&
                          problem.message.find(" " + of_spec.name + " ") != std::string::npos;
  return {problem.reason,
          is_of_spec ? no_priority_class("PriorityClass", of_spec.name, of_spec.field) : problem.message};
}

const CreateProblem* PlanState::problem_of(const std::string& object) const {
  const auto it = observed.problems.find(object);
  return it == observed.problems.end() ? nullptr : &it->second;
}

const OptionalKind* PlanState::find_kind(const std::string& crd_name) const {
  const auto it = observed.kinds.find(crd_name);
  return it == observed.kinds.end() ? nullptr : &it->second;
}

const Json* PlanState::find_own(const OptionalKind* kind, const std::string& name) const {
  if (kind == nullptr) return nullptr;
  const auto found = std::find_if(kind->objects.begin(), kind->objects.end(), [&](const Json& object) {
    const api::ObjectMeta meta = api::meta_of(object);
    return meta.name == name && is_controlled_by(meta, observed.job.meta);
  });
  return found == kind->objects.end() ? nullptr : &*found;
}

bool PlanState::is_blocked(const std::string& object) {
  const CreateProblem* const problem = problem_of(object);
  if (problem == nullptr) return false;
  return (problem->generation == 0 || problem->generation == observed.job.meta.generation) && is_blocked(*problem);
}

bool PlanState::is_blocked(const CreateProblem& problem) {
  if (!obstacle) block_pods(obstacle_of(problem));
  const api::UnixSeconds again = try_again_at(problem);
  requeue(std::max(again, now + 1));
  return now < again;
}

void PlanState::end_job(std::string_view type, const JobFailure& words) {
  is_over = true;
  plan.actions.clear();
  plan.requeue_at.reset();
  status.completion_time = now;
  book.recovering.reset();
  book.waiting_since = 0;
  set(type, api::ConditionStatus::kTrue, words.reason, words.message);
  event(type == api::condition::kFailed, words.reason, words.message, std::string(type));
  plan.why = words.message;
}

void PlanState::fail(const JobFailure& failure) {
  measure(metric::kTrainJobFailures, {{"reason", failure.reason}}, 1);
  end_job(api::condition::kFailed, failure);
}

void PlanState::set(std::string_view type, api::ConditionStatus value, std::string reason, std::string message) {
  status.conditions.set({.type = std::string(type),
                         .status = value,
                         .reason = std::move(reason),
                         .message = std::move(message),
                         .observed_generation = observed.job.meta.generation},
                        now);
}

void PlanState::set(std::string_view type, const ConditionState& condition) {
  set(type, condition.status, condition.reason, condition.message);
  if (condition.requeue_at) requeue(*condition.requeue_at);
}

bool PlanState::creates_pods() const {
  return std::any_of(plan.actions.begin(), plan.actions.end(),
                     [](const Action& action) { return std::holds_alternative<CreatePod>(action.what); });
}

void PlanState::event(bool is_warning, std::string reason, std::string message, std::string action) {
  plan.events.push_back({is_warning, std::move(reason), std::move(message), std::move(action)});
}

void PlanState::measure(const MetricName& metric, std::map<std::string, std::string> labels, double value) {
  plan.measurements.push_back({&metric, std::move(labels), value});
}

void PlanState::requeue(api::UnixSeconds at) {
  if (at > now && (!plan.requeue_at || at < *plan.requeue_at)) plan.requeue_at = at;
}

api::UnixSeconds try_again_at(const CreateProblem& problem) {
  if (problem.reason == kInvalidSpec) return problem.time + doubled_wait(problem.times, kInvalidWaitMaxSeconds);
  if (problem.reason != kQuotaExceeded) return problem.time + kTryAgainSeconds;
  return problem.time + doubled_wait(problem.times, kQuotaWaitMaxSeconds);
}

api::UnixSeconds try_again_at(const FirstPod& refused) {
  return refused.time + doubled_wait(refused.times, kInvalidWaitMaxSeconds);
}

std::string refusal_text(const Observed& observed, const std::string& words, int node_rank, int attempt,
                         bool is_by_admission) {
  const Result<Json> pod = desired_pod(observed, {.node_rank = node_rank, .attempt = attempt});
  return (is_by_admission ? "an admission of this cluster refuses a pod of this spec: "
                          : "the API server refuses a pod of this spec: ") +
         (pod.ok() ? in_words_of_the_spec(words, observed.job.spec, *pod) : words);
}

}  // namespace lockstep::train
