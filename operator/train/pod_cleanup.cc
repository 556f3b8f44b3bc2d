#include "operator/train/pod_cleanup.h"

namespace lockstep::train {

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

}  // namespace lockstep::train
