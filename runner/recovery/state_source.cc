#include "runner/recovery/state_source.h"

#include <algorithm>
#include <tuple>

#include "runner/contract/generation.h"

namespace lockstep {

SourceChoice choose_source(const std::vector<StateClaim>& claims) {
  SourceChoice choice;
  const auto order = [](const StateClaim& c) { return std::tuple(c.lineage, c.step, c.generation, c.evaluated_step); };
  for (size_t r = 0; r < claims.size(); ++r) {
    if (!claims[r].has_state) continue;
    if (!choice.source || order(claims[r]) > order(claims[static_cast<size_t>(*choice.source)])) {
      choice.source = static_cast<int>(r);
    }
  }
  if (!choice.source) {
    choice.receives.assign(claims.size(), false);
    choice.reason = "no rank holds a state";
    return choice;
  }
  const StateClaim& best = claims[static_cast<size_t>(*choice.source)];
  int receivers = 0;
  for (const StateClaim& claim : claims) {
    const bool equal = claim.has_state && order(claim) == order(best);
    choice.receives.push_back(!equal);
    receivers += equal ? 0 : 1;
  }
  choice.reason = "from rank " + std::to_string(*choice.source) + " at step " + std::to_string(best.step) + ", for " +
                  std::to_string(receivers) + " of " + std::to_string(claims.size()) + " ranks";
  return choice;
}

bool may_have_missed_groups(const StateClaim& best, uint64_t generation) {
  return attempt_of(best.generation) == attempt_of(generation) && best.generation + 1 < generation;
}

bool is_newer(const SavedState& saved, const StateClaim& best) {
  return saved.generation > best.generation && saved.step > best.step;
}

StateAge age_in_group(uint64_t lineage, uint64_t generation, const std::vector<StateClaim>& claims) {
  for (const StateClaim& claim : claims) generation = std::max(generation, claim.generation + 1);
  const bool is_new_coordinator = attempt_of(lineage) != attempt_of(generation);
  return {.lineage = is_new_coordinator ? std::max(generation, lineage + 1) : lineage, .generation = generation};
}

CheckpointStamp stamp_when_restored(const CheckpointStamp& here, const std::optional<CheckpointStamp>& read) {
  if (!read || read->run < here.run) return here;
  return {.run = read->run, .generation = std::max(here.generation, read->generation + 1)};
}

}  // namespace lockstep
