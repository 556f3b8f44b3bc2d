// What must hold, whatever is lost, late, duplicated or out of order.
#include <algorithm>

#include "tests/runner/recovery/simulated_job.h"

namespace lockstep::simulation {
namespace {

// If the job completes within this time after the last fault, an agent that was away may have missed it. After this
// time every pod is back.
constexpr Micros kSettled = 30 * kSecond;

}  // namespace

// Generations rise; none is used twice.
void Simulation::check_generation_begins(int process, uint64_t generation) {
  const Process& p = proc(process);
  uint64_t& newest = newest_begun_[process];
  if (generation <= newest) fail("generation ", name_of(generation), " comes after ", name_of(newest));
  if (attempt_of(generation) != p.attempt) fail("generation ", name_of(generation), " of attempt ", p.attempt);
  newest = generation;
  for (const Group& group : groups_) {
    if (group.generation == generation) fail("generation ", name_of(generation), " is used twice");
  }
  ++counts_.groups_placed;
  Group group;
  group.generation = generation;
  group.coordinator = process;
  groups_.push_back(std::move(group));
}

// All members get the same placement, their ranks follow the order of the nodes, node 0 is a member, and no worker of a
// member holds a group.
void Simulation::check_placement_sent(int process, int connection, const Assignment& placement) {
  Group& group = group_of(placement.generation);
  const Connection& c = conn(connection);
  const Process& target = proc(c.agent);
  if (group.nodes_placed == 0) {
    group.world = placement.world_size;
    group.nnodes = placement.nnodes;
    group.ranks.assign(static_cast<size_t>(group.world), RankPlace{});
    if (c.agent != process) fail("the first member of ", name_of(placement.generation), " is not node 0");
    const int wanted = proc(process).coordinator->options.wanted_nodes;
    const bool is_last = proc(process).coordinator->last_end.has_value();  // rank 0 gets the state, and the job ends
    if ((group.nnodes < min_nodes_ && !is_last) || group.nnodes > wanted) {
      fail(group.nnodes, " nodes are placed; ", min_nodes_, " to ", wanted, " are allowed");
    }
    if (group.nnodes < wanted) ++counts_.smaller_groups;
  }
  if (placement.world_size != group.world || placement.nnodes != group.nnodes || group.world != group.nnodes * nproc_ ||
      placement.rank != group.nodes_placed * nproc_) {
    fail("the placements of ", name_of(placement.generation), " do not fit together");
  }
  ++group.nodes_placed;
  if (!target.alive || target.connection != connection || !c.agent_open) return;
  for (const Worker& w : target.workers) {
    if (w.group != 0) fail(name(c.agent), " is placed while its workers hold group ", name_of(w.group));
  }
}

// Once min_nodes are ready, a group is placed within rejoin_timeout.
void Simulation::check_waiting(const Process& process) {
  const CoordinatorState& s = *process.coordinator;
  const bool no_group = s.group == GroupState::kNone || s.group == GroupState::kBroken;
  if (!no_group || s.stop_code != 0) return;
  int ready = 0;
  bool has_first = false;
  for (const auto& [rank, node] : s.nodes) {
    if (node.connection == 0 || !node.ready || node.leaving_code != 0) continue;
    ++ready;
    if (rank == 0) has_first = true;
  }
  const auto dns_ttl = s.group == GroupState::kNone ? dns_ttl_ : std::chrono::milliseconds{0};
  const bool is_late = local_time(process) >= s.waiting_since + rejoin_timeout_ + dns_ttl;
  if (s.groups_without_step > 1 && local_time(process) < s.waiting_since + kWithoutStepPauseMax) return;
  if (has_first && (ready >= s.options.wanted_nodes || (ready >= min_nodes_ && is_late))) {
    fail("coordinator ", process.attempt, " places no group though ", ready, " nodes are ready");
  }
}

// The counts that save a scan of all nodes equal the counts of such a scan.
void Simulation::check_coordinator(const Process& process) {
  const CoordinatorState& s = *process.coordinator;
  NodeTally tally;
  for (const auto& [rank, node] : s.nodes) {
    const bool is_here = node.connection != 0;
    const bool stays = node.leaving_code == 0;
    tally.connected += is_here ? 1 : 0;
    tally.ready += is_here && node.ready && stays ? 1 : 0;
    tally.staying += is_here && stays ? 1 : 0;
    tally.staying_members += is_here && stays && node.member ? 1 : 0;
    tally.awaited += node.member && !node.ready && stays ? 1 : 0;
    if (is_here && (!s.rank_of.contains(node.connection) || s.rank_of.at(node.connection) != rank)) {
      fail("the connection of node ", rank, " is not known as its own");
    }
  }
  if (tally.connected != s.tally.connected || tally.ready != s.tally.ready || tally.staying != s.tally.staying ||
      tally.staying_members != s.tally.staying_members || tally.awaited != s.tally.awaited) {
    fail("the coordinator's counts are wrong");
  }
  if (static_cast<size_t>(tally.connected) != s.rank_of.size()) fail("a connection is known that no node has");
}

// A group continues from the newest state among its ranks, and never from a state of an older coordinator.
void Simulation::check_sync(const Group& group, const TrainedState& source) {
  bool is_torn = false;
  bool has_twins = false;
  for (const RankPlace& place : group.ranks) {
    const TrainedState& state = worker(place.process, place.local).state;
    if (!state.exists) continue;
    if (attempt_of(state.synced_in) > attempt_of(source.synced_in)) {
      fail("group ", name_of(group.generation), " goes on from a state of ", name_of(source.synced_in),
           " though one of the newer coordinator is there, ", name_of(state.synced_in));
    }
    if (state.lineage != source.lineage) continue;
    if (state.step > source.step) fail("step ", state.step, " was committed; the group goes on from ", source.step);
    if (source.step - state.step == 1) is_torn = true;
    if (state.step == source.step && state.committed_in != source.committed_in) has_twins = true;
  }
  // A node that was cut off must not undo what groups that are gone by now have written to a checkpoint.
  const Checkpoint* const saved = newest_on_volume();
  const auto is_ours = [&](uint64_t generation) { return attempt_of(generation) == attempt_of(group.generation); };
  const bool is_newer = saved != nullptr && saved->generation > source.synced_in && saved->state.step > source.step;
  if (is_newer && is_ours(saved->generation) && is_ours(source.synced_in)) {
    fail("group ", name_of(group.generation), " goes on from step ", source.step, " of ", name_of(source.synced_in),
         " though step ", saved->state.step, " of ", name_of(saved->generation), " is on the volume");
  }
  if (is_torn) ++counts_.torn_commits;
  if (has_twins) ++counts_.twins;
}

// All ranks that take part in a step hold the same bits, and only the newest group of a coordinator can commit.
void Simulation::check_round(const Group& group) {
  if (newest_begun_[group.coordinator] != group.generation) {
    fail("group ", name_of(group.generation), " commits although ", name_of(newest_begun_[group.coordinator]),
         " was placed");
  }
  const TrainedState& first = worker(group.ranks[0].process, group.ranks[0].local).state;
  for (const RankPlace& place : group.ranks) {
    const TrainedState& state = worker(place.process, place.local).state;
    if (state.step != first.step || state.lineage != first.lineage || state.bits != first.bits) {
      fail("the ranks of ", name_of(group.generation), " hold different states at step ", first.step);
    }
  }
}

// No agent fails the job by mistake, and none gives up when nothing is in its way.
void Simulation::check_ended(int process) {
  const Process& p = proc(process);
  if (p.code == 0 && !is_current(process)) has_old_completion_ = true;
  if (p.code == 2 && is_current(process)) {
    fail(name(process), " ended with 2, which fails the job, though it is the newest of its rank");
  }
  if (p.code != 10) return;
  ++counts_.gave_up;
  const Micros decided_at = std::min(now_, p.told_at);
  const bool is_undisturbed =
      decided_at > faults_until_ + kSettled + std::chrono::microseconds(rendezvous_timeout_).count();
  if (is_undisturbed && !has_old_completion_ && completed_at_ == kNever) {
    fail(name(process), " gives up though nothing is in the way");
  }
}

// If the job is complete for one agent, it is complete for all.
void Simulation::check_the_end() {
  const bool is_undisturbed = completed_at_ != kNever && completed_at_ > faults_until_ + kSettled;
  if (is_undisturbed) ++counts_.undisturbed_ends;
  for (int rank = 0; rank < nodes_; ++rank) {
    const Process& p = proc(current_[static_cast<size_t>(rank)]);
    if (p.code == 0) continue;
    if (completed_at_ == kNever) {
      fail("all agents ended, but node 0 not with 0");
    } else if (is_undisturbed) {
      fail("node ", rank, " ended with ", p.code, " though the job is complete");
    }
  }
}

}  // namespace lockstep::simulation
