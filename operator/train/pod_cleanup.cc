#include "operator/train/pod_cleanup.h"

#include <algorithm>
#include <map>

namespace lockstep::train {
namespace {

bool is_spoken_of(const PodView& pod, const api::TrainJobStatus& status) {
  return std::any_of(status.recent_failures.begin(), status.recent_failures.end(),
                     [&](const api::RecentFailure& failure) {
                       return failure.node == pod.node_rank && failure.attempt == pod.attempt;
                     });
}

int attempt_of(int node_rank, const api::TrainJobStatus& status) {
  const auto it = status.attempts.find(node_rank);
  return it == status.attempts.end() ? 0 : it->second;
}

}  // namespace

std::vector<const PodView*> pods_to_clean_up(const api::TrainJobSpec& spec, const std::vector<PodView>& pods) {
  std::vector<const PodView*> chosen;
  if (spec.pod_cleanup == api::PodCleanup::kNone) return chosen;
  for (const PodView& pod : pods) {
    const bool has_ended = pod.all_ended || pod.phase == PodPhase::kSucceeded || pod.phase == PodPhase::kFailed;
    if (pod.deleting || (has_ended && spec.pod_cleanup == api::PodCleanup::kRunning)) continue;
    chosen.push_back(&pod);
  }
  return chosen;
}

std::set<std::string> pods_kept_for_logs(const api::TrainJobSpec& spec, const api::TrainJobStatus& status,
                                         const std::vector<PodView>& pods) {
  std::map<int, const PodView*> newest;
  for (const PodView& pod : pods) {
    const bool is_replaced = pod.node_rank < spec.trainer.num_nodes && pod.attempt < attempt_of(pod.node_rank, status);
    // Without the end of a container there is no log: an evicted pod, say. The kubelet reports that all have ended up
    // to a second before it says Failed.
    const bool has_logs = (pod.phase == PodPhase::kFailed || pod.all_ended) && pod.end;
    if (!is_replaced || !has_logs || pod.deleting || !is_spoken_of(pod, status)) continue;
    const PodView*& known = newest[pod.node_rank];
    if (known == nullptr || known->attempt < pod.attempt) known = &pod;
  }
  std::set<std::string> names;
  for (const auto& [node_rank, pod] : newest) names.insert(pod->meta.name);
  return names;
}

}  // namespace lockstep::train
