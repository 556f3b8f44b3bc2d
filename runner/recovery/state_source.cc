#include "runner/recovery/state_source.h"

#include <algorithm>
#include <tuple>

#include "runner/contract/generation.h"

namespace lockstep {

namespace {

auto order(const StateClaim& c) { return std::tuple(c.lineage, c.step, c.generation, c.evaluated_step); }

std::optional<int> find_source(const std::vector<StateClaim>& claims) {
  const auto worth = [&](size_t rank) { return std::pair(order(claims[rank]), claims[rank].is_whole); };
  std::optional<size_t> source;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    if (claims[rank].has_state && (!source || worth(rank) > worth(*source))) source = rank;
  }
  return source ? std::optional(static_cast<int>(*source)) : std::nullopt;
}

// Of the ranks of the source's lineage that have completed most, the one that keeps most, the source before others.
size_t find_keeper(const std::vector<StateClaim>& claims, size_t source) {
  const auto worth = [&](size_t rank) {
    return std::tuple(claims[rank].complete, ~claims[rank].kept_from, rank == source);
  };
  size_t keeper = source;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const bool is_kin = claims[rank].has_state && claims[rank].lineage == claims[source].lineage;
    if (is_kin && worth(rank) > worth(keeper)) keeper = rank;
  }
  return keeper;
}

}  // namespace

SourceChoice choose_source(const std::vector<StateClaim>& claims) {
  SourceChoice choice;
  choice.receives.assign(claims.size(), false);
  choice.lacks_from.assign(claims.size(), std::nullopt);
  choice.source = find_source(claims);
  if (!choice.source) {
    choice.reason = "no rank holds a state";
    return choice;
  }
  const auto source = static_cast<size_t>(*choice.source);
  const StateClaim& best = claims[source];
  const size_t keeper = find_keeper(claims, source);
  choice.complete = claims[keeper].complete;
  int receivers = 0;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const StateClaim& claim = claims[rank];
    const bool is_equal = claim.has_state && order(claim) == order(best);
    const bool gets_results =
        claim.has_state && claim.lineage == best.lineage && claim.complete >= claims[keeper].kept_from;
    uint64_t has = claim.complete;
    if (!gets_results && !(is_equal && has == choice.complete)) {
      if (claim.has_state && (is_equal || !claim.can_take)) {
        choice.behind.push_back(static_cast<int>(rank));
        continue;
      }
      choice.receives[rank] = true;
      ++receivers;
      has = best.at_commit;
    }
    if (has >= choice.complete) continue;
    choice.lacks_from[rank] = has;
    choice.keeper = static_cast<int>(keeper);
  }
  choice.is_lost = receivers > 0 && !best.is_whole;
  choice.reason = "from rank " + std::to_string(*choice.source) + " at step " + std::to_string(best.step) + ", for " +
                  std::to_string(receivers) + " of " + std::to_string(claims.size()) + " ranks";
  return choice;
}

std::vector<Plan> plans_of(const SourceChoice& choice) {
  if (!choice.source) return {};
  const auto ranks = static_cast<int>(choice.receives.size());
  const int behind = choice.behind.empty() ? -1 : choice.behind.front();
  std::vector<Plan> plans(
      choice.receives.size(),
      Plan{.source = *choice.source, .complete = choice.complete, .behind = behind, .is_lost = choice.is_lost});
  const auto plan_of = [&](int rank) -> Plan& { return plans[static_cast<size_t>(rank)]; };
  for (const int rank : choice.behind) plan_of(rank).behind = rank;
  const auto add_handover = [&](Handover Plan::*handover, int sender, const auto& is_for) {
    int size = 1;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank != sender && is_for(static_cast<size_t>(rank))) (plan_of(rank).*handover).rank = size++;
    }
    if (size == 1) return;
    (plan_of(sender).*handover).rank = 0;
    for (Plan& plan : plans) (plan.*handover).size = size;
  };
  add_handover(&Plan::state, *choice.source, [&](size_t rank) { return choice.receives[rank]; });
  if (!choice.keeper) return plans;
  add_handover(&Plan::results, *choice.keeper, [&](size_t rank) { return choice.lacks_from[rank].has_value(); });
  uint64_t first_result = choice.complete;
  for (const auto& lacks : choice.lacks_from) first_result = std::min(first_result, lacks.value_or(first_result));
  for (Plan& plan : plans) plan.first_result = first_result;
  return plans;
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
