#include "tests/runner/recovery/membership_simulation.h"

#include <algorithm>
#include <csignal>

#include "tests/runner/recovery/simulated_job.h"

namespace lockstep {
namespace simulation {
namespace {

// After the last fault the job must end within this time: several rejoin and rendezvous timeouts, and the steps.
constexpr Micros kQuietMax = 400 * kSecond;
constexpr Micros kTrainingMax = 50 * kSecond;  // of an undisturbed run
constexpr Micros kKillGrace = 20 * kSecond;    // of a pod that was told to leave

}  // namespace

// ---- the schedule's shape ----

void Simulation::choose_shape() {
  nodes_ = random_.pick(2, 5);
  nproc_ = random_.one_in(4) ? 2 : 1;
  min_nodes_ = random_.one_in(2) ? nodes_ : random_.pick(1, nodes_);
  wanted_nodes_ = random_.one_in(3) ? random_.pick(min_nodes_, nodes_) : nodes_;
  max_restarts_ = random_.one_of(std::array{0, 2, 10, 10});
  rejoin_timeout_ = std::chrono::milliseconds(random_.between(5'000, 12'000));
  rendezvous_timeout_ = std::chrono::milliseconds(random_.one_in(3) ? 30'000 : 60'000);
  dns_ttl_ = std::chrono::milliseconds(random_.one_in(2) ? 0 : 10'000);
  step_time_ = (random_.one_in(4) ? random_.between(400, 2'000) : random_.between(60, 400)) * kMs;
  target_ = std::min(random_.between(20, 120), kTrainingMax / step_time_);
  checkpoint_every_ = random_.between(3, 20);
  faults_until_ = random_.between(5, 40) * kSecond;
  fault_interval_ = random_.between(300, 8'000) * kMs;
  ambush_one_in_ = random_.pick(5, 80);
  slow_one_in_ = random_.one_in(3) ? 10 : 100;
  for (int kind = 0; kind < static_cast<int>(FaultKind::kCount); ++kind) {
    if (random_.one_in(2)) kinds_.push_back(static_cast<FaultKind>(kind));
  }
  if (random_.one_in(6)) choose_absences();
  uint64_t content = 0;
  for (int64_t at = 0; at <= target_; ++at) {
    canonical_.push_back(content);
    content = mix(content, static_cast<uint64_t>(at + 1));
  }
  current_.assign(static_cast<size_t>(nodes_), -1);
  is_starting_.assign(static_cast<size_t>(nodes_), false);
}

// Long steps, and nodes that are away just long enough that the others go on without them: a node that comes back may
// hold the same step as the others, from another group.
void Simulation::choose_absences() {
  min_nodes_ = 1;
  wanted_nodes_ = nodes_;
  step_time_ = random_.between(1'000, 2'500) * kMs;
  target_ = kTrainingMax / step_time_;
  faults_until_ = 40 * kSecond;
  fault_interval_ = random_.between(1'000, 4'000) * kMs;
  slow_one_in_ = 3;
  ambush_one_in_ = 4;
  kinds_ = {FaultKind::kPartition, FaultKind::kBreak, FaultKind::kWorkerCrash};
}

CoordinatorOptions Simulation::coordinator_options(uint32_t attempt) const {
  CoordinatorOptions options;
  options.job = "job";
  options.token = "secret";
  options.attempt = attempt;
  options.min_nodes = min_nodes_;
  options.max_nodes = nodes_;
  options.wanted_nodes = wanted_nodes_;
  options.rejoin_timeout = rejoin_timeout_;
  options.rendezvous_timeout = rendezvous_timeout_;
  options.stall_timeout = stall_timeout_;
  options.dns_ttl = dns_ttl_;
  return options;
}

NodeOptions Simulation::node_options() const {
  NodeOptions options;
  options.nproc = nproc_;
  options.max_restarts = max_restarts_;
  options.rendezvous_timeout = rendezvous_timeout_;
  return options;
}

// ---- running ----

SimulationResult Simulation::run() {
  trace(nodes_, " nodes of ", nproc_, ", min ", min_nodes_, ", wanted ", wanted_nodes_, ", ", target_, " steps of ",
        step_time_ / kMs, " ms");
  for (int rank = 0; rank < nodes_; ++rank) replace(rank, 1, random_.between(0, 2'000) * kMs);
  push(faults_until_, What::kQuiet);
  if (!kinds_.empty()) push(random_.between(0, fault_interval_), What::kFault);
  while (failure_.empty() && !is_over()) {
    if (events_.empty()) {
      fail("nothing is under way any more, but the job is not over");
      break;
    }
    std::pop_heap(events_.begin(), events_.end(), Later{});
    const Event event = events_.back();
    events_.pop_back();
    now_ = event.at;
    if (now_ > faults_until_ + kQuietMax) {
      fail("the job is not over ", kQuietMax / kSecond, " s after the last fault");
      break;
    }
    ++counts_.events;
    if (!held(event)) dispatch(event);
  }
  if (failure_.empty()) check_the_end();
  counts_.schedules = 1;
  counts_.simulated_seconds = now_ / kSecond;
  return {failure_, counts_};
}

// An event of a process that does not run comes when it runs again, if it still lives.
bool Simulation::held(const Event& event) {
  bool is_agents = false;
  switch (event.what) {
    case What::kNodeTimer:
    case What::kCoordinatorTimer:
    case What::kAgentBeat:
    case What::kInbox:
    case What::kSeek:
    case What::kSeekDecide:
    case What::kSignal:
      is_agents = true;
      break;
    case What::kHello:
    case What::kArrive:
    case What::kSynced:
    case What::kContribute:
    case What::kCommit:
    case What::kPeerLost:
    case What::kCut:
    case What::kExit:
    case What::kDurable:
      break;
    case What::kKilled:
    case What::kSilent:
      return !proc(event.a).alive;
    default:
      return false;
  }
  const Process& process = proc(event.a);
  if (!process.alive) return true;
  if (process.paused_until <= now_ || (!is_agents && !process.pause_holds_workers)) return false;
  push(process.paused_until, event.what, event.a, event.b, event.c, event.d);
  return true;
}

void Simulation::dispatch(const Event& event) {
  switch (event.what) {
    case What::kUp:
      return deliver_up(event.a);
    case What::kDown:
      return deliver_down(event.a);
    case What::kUpAgain:
    case What::kDownAgain:
      return send_again(event.a, event.what, event.b);
    case What::kResetUp:
      return reset_up(event.a);
    case What::kResetDown:
      return reset_down(event.a);
    case What::kRoundCheck:
      return complete_round(groups_[static_cast<size_t>(event.a)]);
    case What::kPodStart:
      --starts_pending_;
      return start_pod(event.a, static_cast<uint32_t>(event.b));
    case What::kPodKill:
      if (event.b == kLeaveGraceOver && proc(event.a).alive) {
        ++counts_.slow_leaves;
        trace(name(event.a), " has not left in time");
      }
      return end_process(event.a, kKilled, random_.one_in(2));
    case What::kFault:
      return inject_fault(event.a != 0);
    case What::kQuiet:
      return quiet();
    case What::kKilled:
    case What::kSilent:
    case What::kDurable:
      return dispatch_process_of_worker(event);
    default:
      return event.what < What::kHello || event.what == What::kSignal ? dispatch_agent(event) : dispatch_worker(event);
  }
}

void Simulation::dispatch_agent(const Event& event) {
  Process& p = proc(event.a);
  const bool is_seek_valid = p.seeking && p.seek_life == event.c;
  switch (event.what) {
    case What::kNodeTimer:
      if (p.node_timer <= now_ || event.b == kTimerMoved) ring(event.a, event.what);
      return;
    case What::kCoordinatorTimer:
      if (p.coordinator_timer <= now_ || event.b == kTimerMoved) ring(event.a, event.what);
      return;
    case What::kAgentBeat:
      return beat(event.a);
    case What::kInbox:
      return run_again(event.a);
    case What::kSeek:
      if (is_seek_valid) seek(event.a);
      return;
    case What::kSeekDecide:
      if (is_seek_valid) decide_seeking(event.a);
      return;
    case What::kSignal:
      trace(name(event.a), " gets signal ", event.b);
      push(now_ + kKillGrace, What::kPodKill, event.a, kLeaveGraceOver);
      return handle(event.a, StopRequested{event.b});
    default:
      return;
  }
}

void Simulation::dispatch_process_of_worker(const Event& event) {
  const Worker& w = worker(event.a, event.b);
  if (!w.alive || w.process != event.c) return;
  if (event.what == What::kDurable) return durable(event);
  if (event.what == What::kSilent) {
    return notify(event.a, WorkerSilent{event.b, std::chrono::seconds(5)});
  }
  end_worker(event.a, event.b, 128 + SIGKILL, false);
}

void Simulation::dispatch_worker(const Event& event) {
  if (worker(event.a, event.b).life != event.c) return;
  switch (event.what) {
    case What::kHello:
      return say_hello(event.a, event.b);
    case What::kArrive:
      return arrive(event.a, event.b);
    case What::kSynced:
      return synced(event.a, event.b);
    case What::kContribute:
      return contribute(event.a, event.b);
    case What::kCommit:
      return commit(event.a, event.b, event.d);
    case What::kPeerLost:
      return lose_group(event.a, event.b, "PeerLost");
    case What::kCut:
      return lose_group(event.a, event.b, "Cut");
    case What::kExit:
      return end_worker(event.a, event.b, static_cast<int>(event.d), false);
    default:
      return;
  }
}

bool Simulation::is_over() const {
  if (!is_quiet_ || starts_pending_ > 0) return false;
  return std::none_of(processes_.begin(), processes_.end(), [](const auto& process) { return process->alive; });
}

// ---- the operator ----

void Simulation::replace(int rank, uint32_t attempt, Micros after) {
  if (is_starting_[static_cast<size_t>(rank)]) return;
  is_starting_[static_cast<size_t>(rank)] = true;
  ++starts_pending_;
  push(now_ + after, What::kPodStart, rank, static_cast<int>(attempt));
}

void Simulation::start_pod(int rank, uint32_t attempt) {
  is_starting_[static_cast<size_t>(rank)] = false;
  if (completed_at_ != kNever) {  // nothing is started any more
    proc(current_[static_cast<size_t>(rank)]).code = 0;
    return;
  }
  const int process = static_cast<int>(processes_.size());
  processes_.push_back(std::make_unique<Process>(node_options()));
  Process& p = proc(process);
  p.rank = rank;
  p.attempt = attempt;
  p.incarnation = random_.next();
  p.offset = random_.between(0, 1'000'000) * kSecond;
  p.workers.resize(static_cast<size_t>(nproc_));
  p.side = random_.pick(0, 1);
  current_[static_cast<size_t>(rank)] = process;
  trace(name(process), " starts");
  if (rank == 0) {
    if (attempt > 1) ++counts_.coordinators_lost;
    p.coordinator = std::make_unique<CoordinatorState>(coordinator_options(attempt));
    p.listed_from = now_ + random_.between(0, 2'000) * kMs;
    // The old address disappears some time after the new one is listed.
    for (const auto& old : processes_) {
      if (old->rank == 0 && old.get() != &p && old->listed_until == kNever) {
        old->listed_until = now_ + random_.between(0, 8'000) * kMs;
      }
    }
    step_coordinator(process, CoordinatorTick{});
  }
  handle(process, Started{});
  push(now_ + random_.between(0, 1'000) * kMs, What::kAgentBeat, process);
}

void Simulation::end_process(int process, int code, bool is_silent) {
  Process& p = proc(process);
  if (!p.alive) return;
  p.alive = false;
  p.code = code;
  trace(name(process), " ends with ", code, is_silent ? ", silently" : "");
  const bool was_killed = code == kKilled || code == kRestartedInPlace;
  for (int local = 0; local < nproc_; ++local) {
    const Worker& w = worker(process, local);
    if (w.group != 0) damage(w.group, process, local, is_silent);
  }
  close_of_process(process, was_killed, is_silent);
  check_ended(process);
  if (!is_current(process)) return;
  if (p.rank == 0 && code == 0) completed_at_ = now_;
  const uint32_t attempt = code == kRestartedInPlace ? p.attempt : p.attempt + 1;
  const Micros after = random_.between(200, random_.one_in(6) ? 20'000 : 3'000) * kMs;
  if (code != 0) replace(p.rank, attempt, after);
}

// ---- faults ----

void Simulation::inject_fault(bool is_ambush) {
  if (is_quiet_) return;
  if (!is_ambush) push(now_ + random_.between(fault_interval_ / 4, fault_interval_ * 2), What::kFault);
  std::vector<int> alive;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i]->alive) alive.push_back(static_cast<int>(i));
  }
  if (alive.empty()) return;
  const FaultKind kind = kinds_[static_cast<size_t>(random_.between(0, static_cast<int64_t>(kinds_.size()) - 1))];
  inject(kind, alive[static_cast<size_t>(random_.between(0, static_cast<int64_t>(alive.size()) - 1))]);
}

// A fault at a moment when much is under way: a step committed, a group placed or ending.
void Simulation::ambush() {
  if (kinds_.empty() || !random_.one_in(ambush_one_in_)) return;
  push(now_ + random_.between(0, 30) * kMs, What::kFault, 1);
}

void Simulation::inject(FaultKind kind, int process) {
  Process& p = proc(process);
  const int local = random_.pick(0, nproc_ - 1);
  switch (kind) {
    case FaultKind::kWorkerCrash:
      return end_worker(process, local, random_.one_of(std::array{1, 11, 12, 13, 134, 137, 139}), random_.one_in(8));
    case FaultKind::kWorkerHang:
      return hang(process, local);
    case FaultKind::kPodCrash:
      return end_process(process, kKilled, random_.one_in(2));
    case FaultKind::kAgentRestart:
      if (p.rank != 0 && is_current(process)) end_process(process, kRestartedInPlace, random_.one_in(2));
      return;
    case FaultKind::kReplace:
      if (!is_current(process) || is_starting_[static_cast<size_t>(p.rank)]) return;
      trace(name(process), " is replaced while it runs");
      push(now_ + random_.between(500, 10'000) * kMs, What::kPodKill, process);
      return replace(p.rank, p.attempt + 1, 0);
    case FaultKind::kBreak:
      if (p.connection >= 0 && !conn(p.connection).in_process) break_connection(p.connection);
      return;
    case FaultKind::kDouble:
      if (p.connection < 0 || conn(p.connection).in_process) return;
      trace("messages of ", name(process), "'s connection come twice for a while");
      conn(p.connection).doubled_until = now_ + random_.between(100, 20'000) * kMs;
      return;
    case FaultKind::kPartition:
      if (now_ < partition_until_) return;
      for (const auto& other : processes_) other->side = random_.pick(0, 1);
      partition_until_ = now_ + partition_length();
      trace("partition for ", (partition_until_ - now_) / kMs, " ms");
      return;
    case FaultKind::kPause:
      return pause(process);
    case FaultKind::kClockJump:
      // Steady clocks do not go back. One that does must cost that much time and nothing else.
      p.offset += random_.one_in(4) ? -random_.between(500, 10'000) * kMs : random_.between(500, 30'000) * kMs;
      trace("the clock of ", name(process), " jumps");
      for (const What timer : {What::kNodeTimer, What::kCoordinatorTimer}) {
        if (timer != What::kCoordinatorTimer || p.coordinator) push(now_ + 1, timer, process, kTimerMoved);
      }
      return;
    case FaultKind::kLeave:
      return push(now_, What::kSignal, process, random_.one_in(8) ? SIGINT : SIGTERM);
    case FaultKind::kSuspend:
      trace("all get SIGTERM");
      for (const int each : current_) {
        if (each >= 0) push(now_ + random_.between(0, 2'500) * kMs, What::kSignal, each, SIGTERM);
      }
      return;
    case FaultKind::kResize:
      return resize();
    case FaultKind::kCount:
      return;
  }
}

// In a collective, in its own work, or (kSilent) as a whole process.
void Simulation::hang(int process, int local) {
  Worker& w = worker(process, local);
  if (w.group == 0) return;
  trace(name(process), " worker ", local, " hangs");
  w.hangs = true;
  w.hangs_in_collective = random_.one_in(2);
  if (random_.one_in(3)) push(now_ + random_.between(5'000, 5'200) * kMs, What::kSilent, process, local, w.process);
}

void Simulation::pause(int process) {
  Process& p = proc(process);
  const Micros length = random_.between(100, 12'000) * kMs;
  if (p.paused_until > now_) return;
  p.paused_until = now_ + length;
  p.pause_holds_workers = random_.one_in(2);
  if (random_.one_in(2)) p.offset -= length;  // its clock stops too
  trace(name(process), " pauses for ", length / kMs, " ms");
}

void Simulation::resize() {
  wanted_nodes_ = random_.pick(min_nodes_, nodes_);
  trace("wanted: ", wanted_nodes_);
  for (size_t i = 0; i < processes_.size(); ++i) {
    const bool hears = processes_[i]->coordinator && processes_[i]->alive;
    if (hears) step_coordinator(static_cast<int>(i), SetWantedNodes{wanted_nodes_});
  }
}

// Often just long enough that a group is placed without the nodes that come back.
Micros Simulation::partition_length() {
  if (random_.one_in(2)) return random_.between(100, 12'000) * kMs;
  return std::chrono::microseconds(rejoin_timeout_ + kHeartbeatTimeout).count() + random_.between(-1'000, 3'000) * kMs;
}

// No fault begins from here on; pods that were replaced and still run are killed at last.
void Simulation::quiet() {
  trace("quiet");
  is_quiet_ = true;
  for (size_t i = 0; i < processes_.size(); ++i) {
    const int process = static_cast<int>(i);
    const bool is_old = processes_[i]->alive && !is_current(process);
    if (is_old) push(now_ + random_.between(0, 5'000) * kMs, What::kPodKill, process);
  }
}

}  // namespace simulation

SimulationResult simulate_membership(uint64_t seed, bool trace) { return simulation::Simulation(seed, trace).run(); }

SimulationCounts& operator+=(SimulationCounts& sum, const SimulationCounts& counts) {
  sum.schedules += counts.schedules;
  sum.events += counts.events;
  sum.simulated_seconds += counts.simulated_seconds;
  sum.groups_placed += counts.groups_placed;
  sum.smaller_groups += counts.smaller_groups;
  sum.groups_formed += counts.groups_formed;
  sum.old_groups_formed += counts.old_groups_formed;
  sum.steps_committed += counts.steps_committed;
  sum.torn_commits += counts.torn_commits;
  sum.twins += counts.twins;
  sum.fresh_starts += counts.fresh_starts;
  sum.stale_states += counts.stale_states;
  sum.undisturbed_ends += counts.undisturbed_ends;
  sum.states_received += counts.states_received;
  sum.doubled += counts.doubled;
  sum.cuts += counts.cuts;
  sum.regroups += counts.regroups;
  sum.stops += counts.stops;
  sum.refusals += counts.refusals;
  sum.superseded += counts.superseded;
  sum.older_coordinators_declined += counts.older_coordinators_declined;
  sum.stale_placements += counts.stale_placements;
  sum.workers_restarted += counts.workers_restarted;
  sum.hangs_killed += counts.hangs_killed;
  sum.others_killed += counts.others_killed;
  sum.slow_leaves += counts.slow_leaves;
  sum.coordinators_lost += counts.coordinators_lost;
  sum.nodes_failed += counts.nodes_failed;
  sum.gave_up += counts.gave_up;
  sum.quiet_ends += counts.quiet_ends;
  return sum;
}

std::string to_text(const SimulationCounts& counts) {
  std::ostringstream text;
  text << counts.schedules << " schedules, " << counts.events << " events, " << counts.simulated_seconds
       << " simulated seconds\n"
       << counts.groups_placed << " groups placed (" << counts.smaller_groups << " with fewer nodes than wanted), "
       << counts.groups_formed << " formed (" << counts.old_groups_formed << " by a coordinator that had a successor), "
       << counts.steps_committed << " steps committed\n"
       << counts.torn_commits << " groups went on from ranks one step apart, " << counts.twins
       << " from ranks with the same step of different groups, " << counts.fresh_starts << " from the volume, "
       << counts.stale_states << " of them though ranks held an older state; " << counts.states_received
       << " states received; " << counts.undisturbed_ends << " ends with nothing in the way\n"
       << counts.coordinators_lost << " coordinators replaced, " << counts.older_coordinators_declined
       << " older ones declined, " << counts.cuts << " cuts, " << counts.regroups << " told to regroup, "
       << counts.stops << " told to stop, " << counts.slow_leaves << " did not leave in time\n"
       << counts.doubled << " messages came twice, " << counts.refusals << " refusals (" << counts.superseded
       << " superseded), " << counts.stale_placements << " placements came too late, " << counts.workers_restarted
       << " workers restarted, " << counts.hangs_killed << " killed for hanging (and " << counts.others_killed
       << " that did not)\n"
       << counts.nodes_failed << " nodes gave up after crashes, " << counts.gave_up
       << " found no peers or coordinator, " << counts.quiet_ends << " ended done without a coordinator";
  return text.str();
}

}  // namespace lockstep
