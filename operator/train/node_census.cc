#include "operator/train/node_census.h"

#include <set>
#include <string>

#include "runner/base/mutex.h"

namespace lockstep::train {

NodesInUse NodeCensus::count(api::UnixSeconds now) {
  const MutexLock lock(mutex_);
  if (counted_at_ == now) return counted_;
  std::set<std::string> names;
  for (const auto& pod : pods_.list()) {
    if (!pod->node.empty() && !has_ended(*pod)) names.insert(pod->node);
  }
  counted_ = {};
  for (const std::string& name : names) {
    const auto node = nodes_.get({.ns = "", .name = name});
    if (node == nullptr) continue;
    ++counted_.all;
    if (is_silent(*node)) ++counted_.silent;
  }
  counted_at_ = now;
  return counted_;
}

}  // namespace lockstep::train
