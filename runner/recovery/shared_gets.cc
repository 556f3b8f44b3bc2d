#include "runner/recovery/shared_gets.h"

#include <algorithm>
#include <utility>

namespace lockstep {

bool SharedGets::joins(int local_rank, const StoreRequest& request) {
  if (request.op != StoreOp::kGet || request.keys.size() < 2) return false;
  if (request.generation != generation_) open_.clear();  // their workers have left that group
  generation_ = request.generation;
  const Asked asked{.local_rank = local_rank, .id = request.id};
  const auto same = std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.keys == request.keys; });
  if (same == open_.end()) {
    open_.push_back({.first = asked, .keys = request.keys, .others = {}});
    return false;
  }
  same->others.push_back(asked);
  return true;
}

std::vector<SharedGets::Asked> SharedGets::pop_others(Asked asked) {
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const Open& o) {
    return o.first.local_rank == asked.local_rank && o.first.id == asked.id;
  });
  if (found == open_.end()) return {};
  std::vector<Asked> others = std::move(found->others);
  open_.erase(found);
  return others;
}

}  // namespace lockstep
