#include "operator/train/coordinator_news.h"

#include "operator/train/pod_end.h"

namespace lockstep::train {

CoordinatorNews coordinator_news(const Observed& observed, const api::TrainJobStatus& status) {
  CoordinatorNews news;
  if (observed.job.spec.trainer.launcher != api::Launcher::kLockstep) return news;
  const auto runs = [&](const PodView& pod) {
    return pod.attempt == status.attempt_of(pod.node_rank) && is_trainer_running(pod) && !pod.ip.empty() &&
           !pod.deleting && !find_end(pod, observed).has_value();
  };
  for (const PodView& pod : observed.pods) {  // pod 0's attempts come first
    if (!runs(pod)) continue;
    if (pod.node_rank == 0) {
      news.address = pod.ip;
    } else if (!news.address.empty()) {
      news.pods.push_back({.uid = pod.meta.uid, .ip = pod.ip});
    }
  }
  if (news.pods.empty()) return {};
  news.token = observed.token();
  news.port = observed.job.spec.trainer.status_port;
  return news;
}

}  // namespace lockstep::train
