#include "operator/train/elastic.h"

namespace lockstep::train {

int pods_needed(const api::TrainJobSpec& spec) {
  return spec.elastic ? spec.elastic->min_nodes : spec.trainer.num_nodes;
}

std::optional<int> num_nodes_to_send(const Observed& o) {
  const int wanted = o.job.spec.trainer.num_nodes;
  if (!o.job.spec.elastic || !o.report || !o.report->wanted_nodes || *o.report->wanted_nodes == wanted) {
    return std::nullopt;
  }
  const bool was_just_sent =
      o.sent_num_nodes && o.sent_num_nodes->num_nodes == wanted && o.sent_num_nodes->time + kResendSeconds > o.now;
  return was_just_sent ? std::nullopt : std::optional<int>(wanted);
}

}  // namespace lockstep::train
