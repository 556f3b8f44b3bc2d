#include "operator/train/node_census.h"

#include <set>
#include <string>

#include "runner/base/json.h"
#include "runner/base/mutex.h"

namespace lockstep::train {

NodesInUse NodeCensus::count(api::UnixSeconds now) {
  const MutexLock lock(mutex_);
  if (counted_at_ == now) return counted_;
  std::set<std::string> names;
  for (const control::ObjectPtr& pod : pods_.list()) {
    const std::string phase = text_field(*pod, {"status", "phase"});
    const std::string node = text_field(*pod, {"spec", "nodeName"});
    if (!node.empty() && phase != "Succeeded" && phase != "Failed") names.insert(node);
  }
  counted_ = {};
  for (const std::string& name : names) {
    const control::ObjectPtr node = nodes_.get({.ns = "", .name = name});
    if (node == nullptr) continue;
    ++counted_.all;
    if (is_silent(view_of_node(*node))) ++counted_.silent;
  }
  counted_at_ = now;
  return counted_;
}

}  // namespace lockstep::train
