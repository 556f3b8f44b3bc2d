#include "operator/train/plan_pods.h"

#include <algorithm>
#include <set>
#include <utility>

#include "operator/kube/resource.h"
#include "operator/train/desired_network_policy.h"
#include "operator/train/desired_pod.h"
#include "operator/train/desired_service.h"
#include "operator/train/failure_policy.h"
#include "operator/train/object_names.h"
#include "operator/train/plan_gang.h"
#include "operator/train/pod_cleanup.h"
#include "operator/train/pod_template.h"
#include "operator/train/user_program.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

// Takes the Service's label from old pods. Pods that have ended have no DNS record and keep it, and so do those that
// end before their successors are made.
void stop_serving(PlanState& state) {
  const Json desired = desired_service(state.observed.job);
  const Json& service =
      state.observed.service && !service_differs(*state.observed.service, desired) ? *state.observed.service : desired;
  for (const PodView& pod : state.observed.pods) {
    if (!state.is_old(pod) || has_ended(pod) || !selects(service, pod) || is_waited_for(state, pod)) continue;
    state.act(StopServing{pod.meta.name, pod.meta.uid},
              pod.node_rank < state.spec.trainer.num_nodes
                  ? "its name is its successor's now"
                  : "numNodes is " + std::to_string(state.spec.trainer.num_nodes));
  }
}

// The highest ranks come first: they are the ones that a job loses when numNodes becomes smaller.
void delete_old_pods(PlanState& state) {
  const std::set<std::string> kept = pods_kept_for_logs(state.spec, state.status, state.observed.pods);
  for (auto pod = state.observed.pods.rbegin(); pod != state.observed.pods.rend(); ++pod) {
    if (!state.is_old(*pod) || pod->deleting || kept.count(pod->meta.name) > 0) continue;
    state.act(DeletePod{pod->meta.name, pod->meta.uid},
              pod->node_rank < state.spec.trainer.num_nodes
                  ? "attempt " + std::to_string(state.attempt_of(pod->node_rank)) + " follows it"
                  : "numNodes is " + std::to_string(state.spec.trainer.num_nodes));
  }
}

PodParameters pod_parameters(const PlanState& state, int node_rank) {
  PodParameters parameters{
      .node_rank = node_rank, .attempt = state.attempt_of(node_rank), .pod_group = state.book.pod_group};
  // A pod that Kueue sends to one node, and that avoids this node, would wait for the whole window.
  if (!state.observed.queue_assigns_nodes) {
    parameters.avoided_nodes = avoided_nodes(state.book, state.spec.restart_policy.window_seconds, state.now);
  }
  return parameters;
}

bool has_had_pods(const PlanState& state) {
  return state.book.checked_generation != 0 || !state.observed.pods.empty() || !state.book.created.empty() ||
         !state.status.attempts.empty();
}

// What the operator itself finds wrong with the spec; empty: nothing.
const std::string& template_fault(PlanState& state) {
  if (!state.template_fault) {
    const Result<Json> pod = desired_pod(state.observed, pod_parameters(state, 0));
    state.template_fault = pod.ok() ? "" : pod.error().message;
  }
  return *state.template_fault;
}

// The answer to the first pod of the present spec; nullptr: it was not refused, or not tried.
const FirstPod* refused_first_pod(const PlanState& state) {
  const std::optional<FirstPod>& first = state.observed.first_pod;
  const bool is_of_this_spec = first && first->generation == state.observed.job.meta.generation;
  return is_of_this_spec && !first->refused.empty() ? &*first : nullptr;
}

// False: no pod can be created from this spec, as far as is known.
bool is_template_valid(PlanState& state) {
  if (const std::string& fault = template_fault(state); !fault.empty()) {
    refuse_spec(state, fault);
    return false;
  }
  const FirstPod* const first = refused_first_pod(state);
  if (first == nullptr) return true;
  refuse_spec(state, refusal_text(state.observed, first->refused, first->node_rank, state.attempt_of(first->node_rank),
                                  first->is_by_admission));
  // The spec need not be at fault: an admission may have changed the pod, or a LimitRange may be mended.
  const api::UnixSeconds again = try_again_at(*first);
  state.requeue(again);
  return again <= state.now;
}

void judge_first_pod(PlanState& state) {
  const int64_t generation = state.observed.job.meta.generation;
  const std::optional<FirstPod>& first = state.observed.first_pod;
  if (first && first->generation == generation && first->refused.empty()) state.book.checked_generation = generation;
}

std::string missing_claim(const PlanState& state) {
  if (!state.spec.checkpoint || state.observed.claim_exists.value_or(true)) return {};
  return state.spec.checkpoint->claim_name();
}

// False: pods cannot be created yet, because the object is missing. An object that this pass creates counts as present,
// because its create comes before those of the pods.
bool has_object(PlanState& state, const std::string& kind, const std::optional<Json>& object, Json desired,
                bool (*differs)(const Json& object, const Json& desired)) {
  const std::string name = kind + " " + state.observed.job.meta.name;
  if (object) {
    if (!api::meta_of(*object).deletion_time) {
      if (differs(*object, desired)) state.act(ApplyObject{std::move(desired)}, "somebody changed it");
      return true;
    }
    state.block_pods({"ObjectTerminating", name + " is being deleted; it is made again when it is gone"});
    return false;
  }
  if (state.is_blocked(name)) return false;
  state.act(CreateObject{std::move(desired)}, "the job's pods need it");
  return state.problem_of(name) == nullptr;
}

// Do the objects exist that pods need: claim, NetworkPolicy, PodGroup, Service? Pods are created after them, except the
// first pod of a spec, which is created together with the Service.
bool has_prerequisites(PlanState& state) {
  if (const std::string claim = missing_claim(state); !claim.empty()) {
    state.block_pods({"ClaimMissing", "spec.checkpoint.volume: there is no PersistentVolumeClaim \"" + claim + "\"" +
                                          " in namespace " + state.observed.job.meta.ns + "; create it"});
    state.requeue(state.now + kTryAgainSeconds);
    return false;
  }
  bool has_all = true;
  if (state.spec.network_policy == api::NetworkPolicyMode::kIntraJob) {
    has_all = has_object(state, kube::kNetworkPolicies.kind, state.observed.network_policy,
                         desired_network_policy(state.observed.job, state.observed.settings), network_policy_differs);
  }
  has_all = has_pod_group(state) && has_all;
  return has_object(state, kube::kServices.kind, state.observed.service, desired_service(state.observed.job),
                    service_differs) &&
         has_all;
}

// A pod of an earlier TrainJob keeps its name for as long as its dead node is not repaired or removed.
void skip_overdue_names(PlanState& state, int node_rank) {
  const auto is_taken = [&] {
    return state.observed.overdue_previous_pods.count(
               pod_name(state.observed.job.meta.name, node_rank, state.attempt_of(node_rank))) > 0;
  };
  while (is_taken()) state.raise_attempt(node_rank);
}

void create_pods(PlanState& state, const std::vector<int>& missing) {
  if (!missing.empty() && !state.queue.no_new_pods.empty()) {
    return state.block_pods({"AdmissionIncomplete", state.queue.no_new_pods});
  }
  if (state.book.placement.again_at > state.now) {
    state.block_pods(
        {std::string(kPodsGivenBack),
         "too few pods were scheduled, and all were deleted to free their nodes; they are created again at " +
             api::format_time(state.book.placement.again_at)});
    return;
  }
  if (const CreateProblem* const refusal = refusal_of_all_pods(state); refusal != nullptr && state.is_blocked(*refusal))
    return;
  if (std::optional<Obstacle> why = earlier_pods_ending(state); why && !missing.empty())
    return state.block_pods(*std::move(why));
  const int64_t generation = state.observed.job.meta.generation;
  bool is_first = state.book.checked_generation != generation;
  for (const int node_rank : missing) {
    skip_overdue_names(state, node_rank);
    const PodParameters parameters = pod_parameters(state, node_rank);
    const std::string name = pod_name(state.observed.job.meta.name, node_rank, parameters.attempt);
    if (const api::UnixSeconds when = not_before(node_rank, state.book); when > state.now) {
      state.requeue(when);
      state.block_pods({"BackingOff", "pod " + name + " is created at " + api::format_time(when) +
                                          ", because its predecessor ended soon after its start"});
      continue;
    }
    if (std::optional<Obstacle> why = earlier_job_ending(state, node_rank)) {
      state.block_pods(*std::move(why));
      state.requeue(state.now + kTryAgainSeconds);
      continue;
    }
    if (state.is_blocked("pod " + name)) continue;
    state.act(CreatePod{parameters, name, std::exchange(is_first, false), generation},
              parameters.attempt == 0
                  ? "pod " + std::to_string(node_rank) + " is missing"
                  : "it is attempt " + std::to_string(parameters.attempt) + " of pod " + std::to_string(node_rank));
  }
}

// The spec of a job that has no pods may be edited while its reason is kInvalidSpec. Another reason is written before a
// pod is sent again, so that no edit can come between the look at the spec and the pod.
void announce_another_try(PlanState& state) {
  if (!state.creates_pods() || !state.obstacle || state.obstacle->reason != kInvalidSpec ||
      !state.node_ranks_with_pods.empty())
    return;
  state.obstacle = Obstacle{std::string(kTriedAgain), "it is tried again; the last answer: " + state.obstacle->message};
}

}  // namespace

std::optional<Obstacle> earlier_job_ending(const PlanState& state, int node_rank) {
  const Observed& o = state.observed;
  const std::string reason = "PreviousRunTerminating";
  const std::string name = pod_name(o.job.meta.name, node_rank, state.attempt_of(node_rank));
  if (o.previous_pods.count(name) > 0) {
    return Obstacle{
        reason,
        "pod " + name + " of an earlier TrainJob of this name is still there; the garbage collector deletes it"};
  }
  const bool is_ours = !any_pod_may_save(state.spec);
  if (o.previous_writer.empty() || (is_ours && node_rank != 0)) return std::nullopt;
  return Obstacle{reason,
                  "pod " + o.previous_writer +
                      " of an earlier TrainJob of this name has not ended and may write a last checkpoint; this "
                      "job's " +
                      (is_ours ? "pod 0 is" : "pods are") +
                      " created when it has ended (if its node is lost for good, delete it with --force)"};
}

void refuse_spec(PlanState& state, const std::string& message) {
  state.block_pods({std::string(kInvalidSpec), message});
}

bool are_pods_refused(PlanState& state) {
  const std::vector<int> missing = missing_node_ranks(state);
  if (missing.empty()) return false;
  if (refused_first_pod(state) != nullptr || !template_fault(state).empty()) return true;
  return std::any_of(state.observed.problems.begin(), state.observed.problems.end(), [](const auto& problem) {
    return problem.second.kind == CreateProblem::Kind::kRefused && problem.second.reason != kQuotaExceeded;
  });
}

void retire_pods(PlanState& state) {
  stop_serving(state);
  delete_old_pods(state);
}

std::vector<int> missing_node_ranks(const PlanState& state) {
  std::vector<int> node_ranks;
  for (size_t i = 0; i < state.current.size(); ++i) {
    const int node_rank = static_cast<int>(i);
    if (state.current[i] == nullptr && state.book.created.count(node_rank) == 0 &&
        state.book.done.count(node_rank) == 0)
      node_ranks.push_back(node_rank);
  }
  return node_ranks;
}

const CreateProblem* refusal_of_all_pods(const PlanState& state) {
  const auto concerns_all = [](const CreateProblem& problem) {
    return problem.reason == kQuotaExceeded || problem.reason == kPriorityClassMissing;
  };
  const CreateProblem* last = nullptr;
  const bool is_any = std::any_of(state.observed.problems.begin(), state.observed.problems.end(),
                                  [&](const auto& problem) { return concerns_all(problem.second); });
  if (!is_any) return nullptr;
  for (const int node_rank : missing_node_ranks(state)) {
    const CreateProblem* const problem =
        state.problem_of("pod " + pod_name(state.observed.job.meta.name, node_rank, state.attempt_of(node_rank)));
    if (problem == nullptr || !concerns_all(*problem)) continue;
    if (last == nullptr || try_again_at(*problem) > try_again_at(*last)) last = problem;
  }
  return last;
}

void plan_pods(PlanState& state, bool stops_replacing_pods) {
  std::vector<int> missing = stops_replacing_pods ? std::vector<int>() : missing_node_ranks(state);
  const bool is_valid = missing.empty() || is_template_valid(state);
  if (is_valid) judge_first_pod(state);
  // Also while no pod is missing, or none can be made: without the Service no agent finds a new pod 0.
  const bool may_create =
      !stops_replacing_pods && (is_valid || has_had_pods(state)) && has_prerequisites(state) && is_valid;
  for (const LookUpPod& lookup : state.lookups) state.act(lookup, "it was there, and the cache does not have it");
  stop_serving(state);
  std::erase_if(missing, [end = num_creatable_pods(state)](int node_rank) { return node_rank >= end; });
  if (may_create) create_pods(state, missing);
  announce_another_try(state);
  delete_old_pods(state);
  retire_pod_groups(state);
}

}  // namespace lockstep::train
