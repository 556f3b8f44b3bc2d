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

std::optional<int> nodes_to_tell(const Observed& o) {
  const int wanted = o.job.spec.trainer.num_nodes;
  if (!o.job.spec.elastic || !o.report || !o.report->wanted_nodes || *o.report->wanted_nodes == wanted) {
    return std::nullopt;
  }
  const bool just_told = o.told && o.told->nodes == wanted && o.told->time + kTellAgainSeconds > o.now;
  return just_told ? std::nullopt : std::optional<int>(wanted);
}

}  // namespace lockstep::train
