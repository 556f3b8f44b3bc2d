// A simulated job: real Coordinators and NodeMachines (runner/recovery), joined as the agent joins them, on a
// made-up network, with made-up workers and a made-up operator, under faults. One seed is one schedule, always the
// same.
//
// What is modelled (docs/architecture.md, docs/checkpoints.md):
//   workers   a state {lineage, step, content}; a group of one generation whose members commit a step only after all of
//             them took part, and may lose the commit's notice each for itself; state sync; final barrier; checkpoints
//   network   TCP: in order within a connection, any delay, so out of order between a connection and the one after it;
//             connections that break for one side, both, or unnoticed; partitions; names that still resolve to an old
//             coordinator; and, which TCP does not do, messages that come twice
//   operator  replaces what ends badly (attempt + 1), sometimes while the old pod still runs (zombies); suspends,
//             resizes; starts nothing any more once node 0 has ended with 0
// Faults: all of these, crashes of workers, agents, pods and machines, hanging workers, pauses, clock jumps; at any
// time, and more often when a group is placed, commits or ends.
//
// What must hold is in simulated_checks.cc. After the last fault the job must come to its end within a bounded time.
// Threads: none.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// How often each thing happened, over all schedules: a simulation in which it never happens proves nothing about it.
struct SimulationCounts {
  int64_t schedules = 0;
  int64_t events = 0;
  int64_t simulated_seconds = 0;
  int64_t groups_placed = 0;      // generations begun
  int64_t smaller_groups = 0;     // … with fewer nodes than wanted
  int64_t groups_formed = 0;      // all ranks came and synced
  int64_t old_groups_formed = 0;  // … by a coordinator that already had a successor
  int64_t steps_committed = 0;    // by all ranks of a group
  int64_t torn_commits = 0;       // groups that went on from ranks whose steps differed
  int64_t twins = 0;              // … or whose last step was the same, but committed in different groups
  int64_t fresh_starts = 0;       // nobody had a state: checkpoint or seed
  int64_t undisturbed_ends = 0;   // all nodes had to end with 0
  int64_t stale_states = 0;       // … or none as new as the checkpoint
  int64_t states_received = 0;
  int64_t doubled = 0;
  int64_t cuts = 0;
  int64_t regroups = 0;
  int64_t stops = 0;
  int64_t refusals = 0;
  int64_t superseded = 0;
  int64_t older_coordinators_declined = 0;
  int64_t stale_placements = 0;  // answered with Broken "NotReady"
  int64_t workers_restarted = 0;
  int64_t hangs_killed = 0;
  int64_t others_killed = 0;  // blamed for a hang that was none of theirs
  int64_t slow_leaves = 0;    // told to leave, killed after their grace
  int64_t coordinators_lost = 0;
  int64_t nodes_failed = 0;  // crash loops, no restarts left
  int64_t gave_up = 0;       // agents that ended with 10
  int64_t quiet_ends = 0;    // agents done that ended without having reached a coordinator again
};

struct SimulationResult {
  std::string failure;  // what did not hold, and when; empty = all held
  SimulationCounts counts;
};

// `trace`: every decision and fault on stderr.
SimulationResult simulate_membership(uint64_t seed, bool trace = false);

SimulationCounts& operator+=(SimulationCounts& sum, const SimulationCounts& counts);
std::string to_text(const SimulationCounts& counts);

}  // namespace lockstep
