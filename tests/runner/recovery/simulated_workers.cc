// Workers, their groups, steps and checkpoints, as docs/architecture.md and docs/checkpoints.md describe them.
#include <algorithm>
#include <optional>

#include "runner/recovery/state_source.h"
#include "tests/runner/recovery/simulated_job.h"

namespace lockstep::simulation {

// ---- processes ----

void Simulation::start_worker(int process, int local) {
  Worker& w = worker(process, local);
  const uint32_t count = w.process + 1;
  const uint32_t life = w.life + 1;
  w = Worker{};
  w.process = count;
  w.life = life;
  w.alive = true;
  push_worker(random_.between(50, 1'500) * kMs, What::kHello, process, local);
}

void Simulation::say_hello(int process, int local) {
  const bool is_complete = std::any_of(volume_.begin(), volume_.end(), [](const auto& c) { return c.is_final; });
  // Node 0's worker sees on the volume that nothing is left to train.
  if (proc(process).rank == 0 && is_complete) return end_worker(process, local, 0, false);
  worker(process, local).said_hello = true;
  notify(process, WorkerHello{local});
}

void Simulation::end_worker(int process, int local, int code, bool is_silent) {
  Worker& w = worker(process, local);
  if (!proc(process).alive || !w.alive) return;
  trace(name(process), " worker ", local, " ends with ", code);
  notify_step(process, local);
  if (w.group != 0) damage(w.group, process, local, is_silent);
  const uint32_t count = w.process;
  const uint32_t life = w.life + 1;
  w = Worker{};
  w.process = count;
  w.life = life;
  notify(process, WorkerEnded{.local_rank = local, .pid = static_cast<int64_t>(count), .code = code});
}

// In a formed group all ranks stop at the same step. Without a group, or before it is formed, a worker has nothing to
// lose.
void Simulation::signal_workers(int process, int signal) {
  for (int local = 0; local < nproc_; ++local) {
    Worker& w = worker(process, local);
    if (!w.alive) continue;
    w.stop_code = 128 + signal;
    if (w.group == 0 || !group_of(w.group).is_formed)
      exit_soon(process, local, w.stop_code, random_.between(0, 50) * kMs);
  }
}

void Simulation::exit_soon(int process, int local, int code, Micros after) {
  Worker& w = worker(process, local);
  if (w.exits) return;
  w.exits = true;
  push_worker(after, What::kExit, process, local, static_cast<uint32_t>(code));
}

// ---- groups ----

void Simulation::place_workers(int process, const Assignment& placement) {
  const Group& group = group_of(placement.generation);
  trace(name(process), " takes its place in ", name_of(placement.generation), " from rank ", placement.rank);
  for (int local = 0; local < nproc_; ++local) {
    Worker& w = worker(process, local);
    if (!w.alive) continue;  // it has ended, and its agent is about to hear of it
    if (w.group != 0) {
      return fail(name(process), " is placed in ", name_of(placement.generation), " but its worker ", local,
                  " holds group ", name_of(w.group));
    }
    w.group = placement.generation;
    w.rank = placement.rank + local;
    w.leaves_together = false;
    w.progress_at = now_;
    if (w.rank >= group.world) return fail("rank ", w.rank, " does not fit into a world of ", group.world);
    push_worker(random_.between(10, 300) * kMs, What::kArrive, process, local);
  }
}

void Simulation::cut_workers(int process, uint64_t generation) {
  for (int local = 0; local < nproc_; ++local) {
    if (worker(process, local).group != generation) continue;
    push_worker(random_.between(1, 200) * kMs, What::kCut, process, local);
  }
}

// The worker drops its group, keeps its state and waits; if it was signalled, it ends. The others lose a peer.
void Simulation::lose_group(int process, int local, const char* cause) {
  Worker& w = worker(process, local);
  if (w.hangs || w.group == 0) return;
  const uint64_t generation = w.group;
  w.group = 0;
  w.leaves_together = false;
  w.exits = false;
  w.progress_at = now_;
  ++w.life;
  damage(generation, process, local, false);
  if (w.stop_code != 0) return exit_soon(process, local, w.stop_code, random_.between(0, 50) * kMs);
  notify_step(process, local);
  notify(process, WorkerLeft{local, generation, cause, ""});
}

void Simulation::damage(uint64_t generation, int process, int local, bool is_silent) {
  Group& group = group_of(generation);
  group.damaged = true;
  if (is_silent) return;
  for (const RankPlace& place : group.ranks) {
    if (place.process < 0 || (place.process == process && place.local == local)) continue;
    const Worker& peer = worker(place.process, place.local);
    if (peer.group != generation || !reachable(process, place.process)) continue;
    push_worker(random_.between(1, 60) * kMs, What::kPeerLost, place.process, place.local);
  }
}

Group& Simulation::group_of(uint64_t generation) {
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    if (group->generation == generation) return *group;
  }
  fail("generation ", name_of(generation), " was never begun");
  return groups_.front();
}

void Simulation::arrive(int process, int local) {
  Worker& w = worker(process, local);
  if (w.hangs) return;
  Group& group = group_of(w.group);
  RankPlace& place = group.ranks[static_cast<size_t>(w.rank)];
  if (place.process >= 0) return fail("two workers are rank ", w.rank, " of ", name_of(group.generation));
  place = {process, local};
  w.progress_at = now_;
  ++group.arrived;
  // A rank that arrives when another one is gone loses its peer at once.
  if (group.damaged) push_worker(random_.between(1, 60) * kMs, What::kPeerLost, process, local);
  if (group.arrived == group.world && !group.damaged) sync(group);
}

// ---- state ----

// By generation and step; nullptr when there is none.
const Checkpoint* Simulation::newest_on_volume() const {
  const Checkpoint* newest = nullptr;
  for (const Checkpoint& checkpoint : volume_) {
    const bool is_newer = newest == nullptr || std::pair{checkpoint.generation, checkpoint.state.step} >
                                                   std::pair{newest->generation, newest->state.step};
    if (is_newer) newest = &checkpoint;
  }
  return newest;
}

void Simulation::sync(Group& group) {
  std::vector<StateClaim> claims;
  for (const RankPlace& place : group.ranks) {
    const TrainedState& state = worker(place.process, place.local).state;
    claims.push_back(
        {.lineage = state.lineage, .step = state.step, .has_state = state.exists, .generation = state.synced_in});
  }
  SourceChoice choice = choose_source(claims);
  const Checkpoint* const saved = newest_on_volume();
  if (choice.source && saved != nullptr) {
    const StateClaim& best = claims[static_cast<size_t>(*choice.source)];
    const SavedState found{.generation = saved->generation, .step = saved->state.step};
    if (may_have_missed_groups(best, group.generation) && is_newer(found, best)) {
      ++counts_.stale_states;
      choice.source.reset();
    }
  }
  TrainedState source;
  if (choice.source) {
    const RankPlace& place = group.ranks[static_cast<size_t>(*choice.source)];
    source = worker(place.process, place.local).state;
  }
  ++counts_.groups_formed;
  if (proc(current_[0]).attempt > attempt_of(group.generation)) ++counts_.old_groups_formed;
  StateAge age;
  if (source.exists) {
    check_sync(group, source);
    age = age_in_group(source.lineage, group.generation, claims);
  } else {
    ++counts_.fresh_starts;
    const Checkpoint* const read = saved;
    if (read != nullptr) source = read->state;
    source.exists = true;
    source.committed_in = group.generation;
    const auto written =
        read == nullptr ? std::nullopt : std::optional(CheckpointStamp{.generation = read->generation});
    const CheckpointStamp stamp = stamp_when_restored({.generation = group.generation}, written);
    age = {.lineage = stamp.generation, .generation = stamp.generation};
  }
  group.is_formed = true;
  group.round = source.step + 1;
  trace("group ", name_of(group.generation), " of ", group.world, " goes on from step ", source.step, " of lineage ",
        name_of(age.lineage));
  for (size_t rank = 0; rank < group.ranks.size(); ++rank) {
    const RankPlace& place = group.ranks[rank];
    Worker& w = worker(place.process, place.local);
    const bool receives = !choice.source || choice.receives[rank];  // a checkpoint goes to all
    if (receives) ++counts_.states_received;
    w.incoming = receives ? source : w.state;
    w.incoming.lineage = age.lineage;
    w.incoming.synced_in = age.generation;
    push_worker(random_.between(5, 300) * kMs, What::kSynced, place.process, place.local);
  }
}

void Simulation::synced(int process, int local) {
  Worker& w = worker(process, local);
  // The sender may go in the middle of a transfer: a state that is received in part is dropped.
  if (w.hangs || (group_of(w.group).damaged && random_.one_in(2))) return;
  w.state = w.incoming;
  go_on(process, local);
}

// ---- steps ----

// Goes on to the next step; after the last one to the barrier, which rank 0 reaches when its last checkpoint is
// durable.
void Simulation::go_on(int process, int local) {
  Worker& w = worker(process, local);
  w.progress_at = now_;
  Micros took = step_time_ * random_.between(80, 120) / 100;
  if (w.state.step == target_) {
    took = random_.between(50, 1'000) * kMs;
    if (w.rank == 0) write_checkpoint(process, local, took - 1, true);
  } else if (w.rank == 0 && w.state.committed_in == w.group && w.state.step % checkpoint_every_ == 0) {
    write_checkpoint(process, local, random_.between(50, 1'500) * kMs, false);
  }
  push_worker(took, What::kContribute, process, local);
}

void Simulation::contribute(int process, int local) {
  Worker& w = worker(process, local);
  if (w.hangs) return;
  Group& group = group_of(w.group);
  if (w.state.step + 1 != group.round) {
    return fail(name(process), " takes part in step ", group.round, " with a state of step ", w.state.step);
  }
  w.progress_at = now_;
  group.leave = group.leave || w.leaves_together;
  group.stop = group.stop || w.stop_code != 0;
  if (++group.contributed == group.world) complete_round(group);
}

bool Simulation::is_split(const Group& group) const {
  return std::any_of(group.ranks.begin(), group.ranks.end(),
                     [&](const RankPlace& place) { return !reachable(place.process, group.ranks.front().process); });
}

// All ranks have contributed; a rank that is out of reach is waited for.
void Simulation::complete_round(Group& group) {
  if (group.damaged) return;
  const bool is_held = std::any_of(group.ranks.begin(), group.ranks.end(), [&](const RankPlace& place) {
    return proc(place.process).pause_holds_workers && proc(place.process).paused_until > now_;
  });
  if (is_held || is_split(group)) {
    return push(now_ + 200 * kMs, What::kRoundCheck, static_cast<int>(&group - groups_.data()));
  }
  check_round(group);
  if (group.round <= target_) ++counts_.steps_committed;
  const uint32_t flags = (group.leave ? kLeaveFlag : 0) | (group.stop ? kStopFlag : 0);
  ++group.round;
  group.contributed = 0;
  ambush();
  for (const RankPlace& place : group.ranks) {
    const Micros after = random_.one_in(slow_one_in_) ? random_.between(1, 500) * kMs : random_.between(1, 20) * kMs;
    push_worker(after, What::kCommit, place.process, place.local, flags);
  }
}

void Simulation::commit(int process, int local, uint32_t flags) {
  Worker& w = worker(process, local);
  if (w.hangs) return;
  if (is_split(group_of(w.group)) && random_.one_in(2)) {  // the last part of the sum does not arrive
    return push_worker(300 * kMs, What::kCommit, process, local, flags);
  }
  w.progress_at = now_;
  if (w.state.step == target_) {  // the final barrier
    w.group = 0;
    return exit_soon(process, local, 0, random_.between(0, 400) * kMs);
  }
  ++w.state.step;
  w.state.content = mix(w.state.content, static_cast<uint64_t>(w.state.step));
  w.state.bits = mix(w.state.bits, w.group);
  w.state.committed_in = w.group;
  if (w.state.content != canonical_[static_cast<size_t>(w.state.step)]) {
    return fail(name(process), " holds another content of step ", w.state.step, " than an undisturbed run");
  }
  if ((flags & kStopFlag) != 0) {
    const bool is_writer = w.rank == 0;
    const Micros took = is_writer ? random_.between(50, 1'000) * kMs : 0;
    if (is_writer) write_checkpoint(process, local, took, false);
    w.group = 0;
    return exit_soon(process, local, w.stop_code == 0 ? 143 : w.stop_code, took + random_.between(1, 100) * kMs);
  }
  if ((flags & kLeaveFlag) != 0) return leave_together(process, local);
  go_on(process, local);
}

// All leave at the same step: nobody loses a peer.
void Simulation::leave_together(int process, int local) {
  Worker& w = worker(process, local);
  const uint64_t generation = std::exchange(w.group, 0);
  w.leaves_together = false;
  ++w.life;
  if (w.leaving_code != 0) return exit_soon(process, local, w.leaving_code, random_.between(0, 50) * kMs);
  notify_step(process, local);
  notify(process, WorkerLeft{local, generation, "Regroup", ""});
}

void Simulation::write_checkpoint(int process, int local, Micros took, bool is_final) {
  const Worker& w = worker(process, local);
  under_way_.push_back({w.state.synced_in, is_final, w.state});
  push(now_ + took, What::kDurable, process, local, w.process, static_cast<uint32_t>(under_way_.size() - 1));
}

void Simulation::durable(const Event& event) {
  volume_.push_back(under_way_[event.d]);
  const int64_t step = under_way_[event.d].state.step;
  notify(event.a, CheckpointNews{step});
}

}  // namespace lockstep::simulation
