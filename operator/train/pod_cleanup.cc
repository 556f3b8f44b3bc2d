#include "operator/train/pod_cleanup.h"

#include <algorithm>
#include <map>

namespace lockstep::train {
namespace {

bool is_in_recent_failures(const PodView& pod, const api::TrainJobStatus& status) {
  return std::any_of(status.recent_failures.begin(), status.recent_failures.end(),
                     [&](const api::RecentFailure& failure) {
                       return failure.node == pod.node_rank && failure.attempt == pod.attempt;
                     });
}

}  // namespace

std::vector<const PodView*> pods_to_clean_up(const api::TrainJobSpec& spec, const std::vector<PodView>& pods) {
  std::vector<const PodView*> chosen;
  if (spec.pod_cleanup == api::PodCleanup::kNone) return chosen;
  for (const PodView& pod : pods) {
    const bool is_over = pod.all_ended || has_ended(pod);
    if (pod.deleting || (is_over && spec.pod_cleanup == api::PodCleanup::kRunning)) continue;
    chosen.push_back(&pod);
  }
  return chosen;
}

std::set<std::string> pods_kept_for_logs(const api::TrainJobSpec& spec, const api::TrainJobStatus& status,
                                         const std::vector<PodView>& pods) {
  std::map<int, const PodView*> newest;
  for (const PodView& pod : pods) {
    const bool is_replaced = pod.node_rank < spec.trainer.num_nodes && pod.attempt < status.attempt_of(pod.node_rank);
    // Without the end of a container there is no log: an evicted pod, say. The kubelet reports that all have ended up
    // to a second before it says Failed.
    const bool has_logs = (pod.phase == PodPhase::kFailed || pod.all_ended) && pod.end;
    if (!is_replaced || !has_logs || pod.deleting || !is_in_recent_failures(pod, status)) continue;
    const PodView*& known = newest[pod.node_rank];
    if (known == nullptr || known->attempt < pod.attempt) known = &pod;
  }
  std::set<std::string> names;
  for (const auto& [node_rank, pod] : newest) names.insert(pod->meta.name);
  return names;
}

}  // namespace lockstep::train
