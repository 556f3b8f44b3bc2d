// PlanState: what the parts of make_plan share: what was observed, the status and the bookkeeping as they will be, the
// plan so far. Pure.
//
// Who fills what: plan_assessment the fields about pods and the report; each decision the status, the bookkeeping and
// the plan. One pass has one state, on one thread; it refers to `observed`, which outlives it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operator/train/bookkeeping.h"
#include "operator/train/failure_policy.h"
#include "operator/train/kueue.h"
#include "operator/train/observed.h"
#include "operator/train/plan.h"
#include "operator/train/pod_end.h"
#include "operator/train/status.h"
#include "operator/train/suspend.h"

namespace lockstep::train {

// Interval at which a create that was refused, or a missing claim, is tried again: no watch reports a change of these.
inline constexpr api::UnixSeconds kTryAgainSeconds = 10;

struct PlanState {
  explicit PlanState(const Observed& observed);

  const Observed& observed;
  const api::TrainJobSpec& spec;
  const api::UnixSeconds now;
  api::TrainJobStatus status;  // as it will be
  Bookkeeping book;            // likewise
  Plan plan;

  // By node rank; plan_assessment fills them, and raise_attempt empties a rank's.
  std::vector<const PodView*> current;  // the pod of its attempt
  std::vector<bool> failed;
  std::vector<PodEnd> ends;  // of pods that ended badly
  std::vector<LookUpPod> lookups;
  std::set<int> node_ranks_with_pods;          // node ranks that have a pod, of any attempt, that has not ended
  int pods_left = 0;                           // the number of such pods
  std::map<std::string, int> living_by_group;  // the same by the name of their PodGroup
  const RunReport* report = nullptr;           // a fresh one of the current pod 0; nullptr: there is none
  std::string recovered;                       // a sentence about a recovery that has just ended; "": there is none
  bool made_no_step = false;                   // pod 0 has ended, and had nothing to do
  SuspendDecision suspend;
  QueueDecision queue;
  std::optional<Hold> queue_hold;  // why a queue keeps the job suspended; nothing: it does not
  std::optional<Obstacle> obstacle;
  std::optional<std::string>
      template_fault;                     // why the operator makes no pod of the spec, "": it does; plan_pods has it
  std::optional<Obstacle> gang_obstacle;  // why there is no PodGroup
  bool is_over = false;                   // the job ends in this pass

  // Why the job is kept suspended though its user did not ask for it; nullptr: it is not.
  [[nodiscard]] const Hold* active_hold() const;

  // That of its attempt; nullptr: there is none.
  [[nodiscard]] const PodView* pod0() const { return current.empty() ? nullptr : current.front(); }
  // Why the last write of an object ("pod sasrec-0-0") failed; nullptr: it did not.
  [[nodiscard]] const CreateProblem* problem_of(const std::string& object) const;
  // A kind that a cluster may lack, by its CRD name; nullptr: the job needs none of it.
  [[nodiscard]] const OptionalKind* find_kind(const std::string& crd_name) const;
  // The job's own object of that kind; nullptr: there is none.
  [[nodiscard]] const Json* find_own(const OptionalKind* kind, const std::string& name) const;

  [[nodiscard]] int attempt_of(int node_rank) const { return status.attempt_of(node_rank); }
  // Is the pod of an earlier attempt, or of a rank from numNodes on?
  [[nodiscard]] bool is_old(const PodView& pod) const;
  // The node rank gets a pod with the next attempt number, and so with another name. Its earlier pod is not looked at
  // any more in this pass.
  void raise_attempt(int node_rank);

  [[nodiscard]] bool creates_pods() const;  // the plan so far
  // Notes why pods cannot be created. The status shows only the first of several reasons.
  void block_pods(Obstacle why);
  // What the status shows of a refused create.
  [[nodiscard]] Obstacle obstacle_of(const CreateProblem& problem) const;
  // Was the create of this object refused, and is it too early to try again? Then that also blocks the pods.
  bool is_blocked(const std::string& object);
  bool is_blocked(const CreateProblem& problem);

  // The job is over: nothing else of the plan is done.
  void end_job(std::string_view type, const JobFailure& words);
  void fail(const JobFailure& failure);

  void set(std::string_view type, api::ConditionStatus value, std::string reason, std::string message);
  void set(std::string_view type, const ConditionState& condition);

  template <typename What>
  void act(What what, std::string why) {
    plan.actions.push_back({std::move(what), std::move(why)});
  }
  void event(bool is_warning, std::string reason, std::string message, std::string action);
  void measure(const MetricName& metric, std::map<std::string, std::string> labels, double value);
  void requeue(api::UnixSeconds at);
};

// When what was refused is tried again.
api::UnixSeconds try_again_at(const CreateProblem& problem);
api::UnixSeconds try_again_at(const FirstPod& refused);

// Why no pod can be made, in the fields of the TrainJob: `words` are the server's about the pod of this rank.
std::string refusal_text(const Observed& observed, const std::string& words, int node_rank, int attempt,
                         bool is_by_admission);

}  // namespace lockstep::train
