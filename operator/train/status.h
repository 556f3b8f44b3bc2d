// status: conditions with reasons and sentences, counts, phase. Pure.
//
// Reasons are stable words for programs. Messages are for users, who may have nothing but `kubectl describe`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/train/observed.h"
#include "runner/base/result.h"

namespace lockstep::train {

struct PlanState;

// Something that keeps pods from being made.
struct Obstacle {
  std::string reason;
  std::string message;
};

api::NodeCounts count_pods(const PlanState& state);

// A condition without its type.
struct ConditionState {
  api::ConditionStatus status = api::ConditionStatus::kFalse;
  std::string reason;
  std::string message;
  std::optional<api::UnixSeconds> requeue_at = {};  // when it changes although nothing else does
};
// `is_late`: the job fails now, so that no wait is normal any more.
ConditionState pods_ready_condition(const PlanState& state, bool is_late = false);
// Is a step known to have been committed since the group last formed?
ConditionState running_condition(const PlanState& state);
// After a recovery the condition keeps its reason and message, those of `before`.
ConditionState recovering_condition(const PlanState& state, const ConditionState& before);
ConditionState degraded_condition(const PlanState& state, const ConditionState& running);
ConditionState checkpoint_ready_condition(const api::TrainJobStatus& status, const ConditionState& before);

// The reason of PodsReady while pods have scheduling gates, by which a queue, for example, holds them back.
inline constexpr std::string_view kSchedulingGated = "SchedulingGated";
// The reason of PodsReady after health.placementTimeoutSeconds, until pods are made again; an event reports it, too.
inline constexpr std::string_view kPodsGivenBack = "PodsGivenBack";
// The reason of PodsReady between kInvalidSpec and the answer to another try.
inline constexpr std::string_view kTriedAgain = "PodsTriedAgain";
// The reason of GangScheduled when the pods of the gang are scheduled one by one.
inline constexpr std::string_view kNoGang = "NoGang";
// The reason of GangScheduled when the PodGroup has lost the topology.
inline constexpr std::string_view kTopologyIgnored = "TopologyIgnored";
// The reason of GangScheduled while pods of the previous gang have not ended.
inline constexpr std::string_view kEarlierGangEnding = "EarlierGangEnding";
// Is this reason of PodsReady a problem, and not part of the normal start and end of pods?
bool is_problem(std::string_view pods_ready_reason);

// phase, reason and message, from the conditions.
void summarise(const PlanState& state, api::TrainJobStatus& status);

// The status of a TrainJob that cannot be read because of its spec (`why`): PodsReady is False, with why. nullopt: it
// says so already, the job has ended, or it is another controller's. kInvalid when its status cannot be read either.
Result<std::optional<api::TrainJobStatus>> status_of_unreadable(const Json& job, const Error& why,
                                                                api::UnixSeconds now);

// Copies what pod 0 reported into progress. lastUpdatedTime changes only when something else in it does.
void copy_progress(const RunReport& report, api::TrainJobStatus& status);
// Adds the failures of workers that an agent restarted and that the status does not list yet.
void count_process_failures(const RunReport& report, const std::vector<const PodView*>& current,
                            api::TrainJobStatus& status);
// "Pod job-1-0: the worker of rank 3 ended with 139 (SignalSEGV: segmentation fault), and 1 more. …" The
// newest restart in the status; `restarts`: the number of new restarts that the text is about.
std::string worker_restarted_text(const api::TrainJobStatus& status, const std::vector<const PodView*>& current,
                                  int64_t restarts);
void add_failure(api::RecentFailure failure, api::TrainJobStatus& status);

}  // namespace lockstep::train
