#include "operator/train/elastic.h"

namespace lockstep::train {

int nodes_needed(const api::TrainJobSpec& spec) {
  return spec.elastic ? spec.elastic->min_nodes : spec.trainer.num_nodes;
}

std::vector<int> nodes_to_remove(const api::TrainJobSpec& spec, const std::set<int>& created) {
  std::vector<int> nodes;
  for (auto node = created.rbegin(); node != created.rend() && *node >= spec.trainer.num_nodes; ++node) {
    nodes.push_back(*node);
  }
  return nodes;
}

std::optional<int> node_count_to_send(const Observed& o) {
  const int wanted = o.job.spec.trainer.num_nodes;
  if (!o.job.spec.elastic || !o.report || !o.report->wanted_nodes || *o.report->wanted_nodes == wanted) {
    return std::nullopt;
  }
  const bool was_just_sent =
      o.sent_node_count && o.sent_node_count->nodes == wanted && o.sent_node_count->time + kResendSeconds > o.now;
  return was_just_sent ? std::nullopt : std::optional<int>(wanted);
}

}  // namespace lockstep::train
