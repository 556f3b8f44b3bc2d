// Coordinator: who is in the group, in which generation. Pure. (docs/recovery.md)
//
// Role: the membership state machine of node 0's agent. It receives the messages of the nodes' agents
// (contract/coordination.h) and answers with placements, cuts and the end of the job. It keeps nothing on disk: a
// coordinator that is started again learns everything from the agents that join it.
//
// Invariants, also when messages are lost, late, repeated or out of order
// (tests/runner/recovery/membership_simulation):
//   1. There is at most one group per generation, and all its members have the same placement. Generations increase;
//      those of a new coordinator are above all earlier ones, because their upper half is its attempt.
//   2. A new group is placed only when the group before it has ended, and every new member is ready: its workers are in
//      no group and wait for a placement. Node 0 is always a member, so that no two groups of one coordinator can both
//      commit.
//   3. As long as min_nodes are ready, a group forms within rejoin_timeout (the first one within rejoin_timeout and
//      dns_ttl together).
//   4. When one node reports that training is complete, the job is complete for all nodes.
//
// A group ends in one of two ways. Broken: a member was lost, or reported that it cannot go on; all members are cut at
// once, and the step in flight is redone. Regrouped: the members are asked to leave together at the end of a step,
// because a node leaves or another node can join. Then the next group is placed: at once when wanted_nodes are ready or
// no member of the last group is missing; after rejoin_timeout with the nodes that are ready. When too few nodes are
// ready for rendezvous_timeout, the job ends; this time starts again with every progress of a worker in long work of
// its own (loading data, an evaluation, a restore, a checkpoint).
//
// When groups in a row break before their first step, for whatever reason (closed ports, a wrong network interface, a
// node that is lost at each transfer of the state), the next group is placed after a pause, which doubles each time.
// When that has gone on for rendezvous_timeout, the job ends.
//
// The ranks that outlive their groups say what they hold when they have left one (StateClaim). The assignment of the
// next group tells each rank what to do before it goes on (Plan): who hands a state over to whom. state_source.h
// chooses.
//
// All nodes must have the same terms (contract/messages.h, Hello). A ready node whose terms differ from node 0's is
// refused, with a message that names the difference; but a node 0 that holds no steps is the one that is refused when
// it differs from a node that does. The terms of a node are not known before its workers are ready.
//
// The end: a node that gives up ends the job only if judge_end (restart_policy.h) says so of its code; what counts is
// whether any node has trained. Otherwise it is lost like any other. Rank 0 alone writes checkpoints. So as long as
// other ranks hold steps that are in no checkpoint, and rank 0, which was started again, does not hold them, no node
// leaves: one that asks to is held until rank 0 has got the state in a group, and a job that is to end because nodes
// are missing places a last group of those that are ready. A member may hold such steps until its first heartbeat after
// the group broke, which its agent sends as soon as it is cut. (The nodes have stop_timeout for that, node_machine.h.)
//
// Hangs: a rank that shows no progress and waits for no other rank is killed. When all ranks wait, in a collective or
// for their devices, the group is broken first: ranks that can leave it keep their state, and a rank that cannot is
// killed by its agent (node_machine.h), or here if it then shows no progress in work of its own. When the next group is
// stuck at the same step, its ranks at the lowest step (usually all of them) are killed.
//
// Cost: an event touches only its own node, O(log nodes). All nodes are scanned (for beats, silence, stalls, the reason
// of a wait) only every kBeatInterval, when the silence of a node may exceed its limit, or at a change that is sent to
// all of them anyway.
// Threads: none. Time is an argument; the caller sends CoordinatorTick at `deadline`. Every decision carries its reason
// (Note, cause).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runner/base/clock.h"
#include "runner/contract/coordination.h"
#include "runner/contract/generation.h"
#include "runner/recovery/straggler.h"

namespace lockstep {

using ConnectionId = uint64_t;  // given by the caller, never 0, never used twice

// When a node leaves, the others are likely to leave, too (a suspend, a drain). The coordinator waits this long for
// them, so that the whole job stops at one step with a checkpoint instead of continuing with fewer nodes for a moment.
inline constexpr std::chrono::milliseconds kLeaveGather{2000};
// Most workers of one node; a higher number is refused as a mistake.
inline constexpr int kNprocMax = 1024;
// Pause after the second group in a row that broke before its first step; it doubles with each further one, up to the
// maximum.
inline constexpr std::chrono::seconds kWithoutStepPauseInitial{1};
inline constexpr std::chrono::seconds kWithoutStepPauseMax{30};
// Causes of the end of a group: a node was lost, leaves, or can join. (A worker's end has exit_reason as its cause.)
inline constexpr const char* kNodeLost = "NodeLost";
inline constexpr const char* kNodeLeaves = "Leave";
inline constexpr const char* kNodeJoins = "Join";
// Minimum time between two scans of all nodes for silence. Without it, n nodes that fall silent one after the other
// would cost n scans.
inline constexpr std::chrono::milliseconds kSilenceGather{50};
// Most connections that have greeted but not joined, for each possible node. An agent that was started again or tries
// several addresses has more than one.
inline constexpr size_t kGreetingsPerNode = 4;

struct CoordinatorOptions {
  std::string job;
  std::string token;
  uint32_t attempt = 0;  // upper half of every generation
  int min_nodes = 1;
  int max_nodes = 1;
  int wanted_nodes = 1;                              // min_nodes … max_nodes; changed by SetWantedNodes
  std::chrono::milliseconds rejoin_timeout{30'000};  // wait for a node before going on with fewer
  // The job ends with exit code 10 when too few nodes are ready for this long, and no worker makes progress meanwhile.
  std::chrono::milliseconds rendezvous_timeout{300'000};
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;
  // A worker that shows no progress for this long is killed; earlier when there is no group and the others have waited
  // for long.
  std::chrono::milliseconds stall_timeout{600'000};
  // Added to rejoin_timeout for the first group. When node 0 was lost, the surviving nodes hold the newest state, but
  // find its replacement only when DNS no longer gives the old address. A group without them would fall back to a
  // checkpoint.
  std::chrono::milliseconds dns_ttl{0};
  bool ranks_keep_state = true;  // as NodeOptions'
};

// ---- events ----

struct NodeSent {
  ConnectionId connection = 0;
  NodeMessage message;
};
struct ConnectionEnded {
  ConnectionId connection = 0;
  std::string why;
};
struct SetWantedNodes {
  int nodes = 0;
};
struct CoordinatorTick {};
using CoordinatorEvent = std::variant<NodeSent, ConnectionEnded, SetWantedNodes, CoordinatorTick>;

// ---- outputs ----

struct Send {
  ConnectionId connection = 0;
  CoordinatorMessage message;
};
// Close the connection, after everything that was sent on it before. The coordinator has forgotten it: a later
// ConnectionEnded for it is ignored, and a later message on it is answered with another Close.
struct Close {
  ConnectionId connection = 0;
};
struct BeginGeneration {  // a new, empty store replaces the earlier one; precedes the placements
  uint64_t generation = 0;
};
// A store request of a member; the caller's KeyValueStore answers it with StoreAnswerTo.
struct AskStore {
  ConnectionId connection = 0;
  int local_rank = 0;
  StoreRequest request;
};
// A decision or an observation in words, emitted once. It is one line, also when it quotes other text.
struct Note {
  std::string text;
  bool is_warning = false;
  bool is_refusal = false;  // a connection was refused; the caller limits the rate of these
};
// What happened, for node 0's record of the job and its page. The caller does nothing else with it.
//
// The group of `generation` cannot go on, or its ranks have left it together. It comes again, with the same generation,
// when its cause becomes known later (a rank that lost a peer may report that before the peer's agent reports why):
// then `cause` is the right one, and so are `rank` and `detection_seconds` if no rank was known.
struct GroupBroke {
  uint64_t generation = 0;
  std::string cause;                // CamelCase
  int rank = -1;                    // rank of the worker that ended; -1: none did
  std::string message;              // a sentence
  double detection_seconds = -1.0;  // from the last sign of life to the detection; negative: not known
  bool step_in_flight = true;       // false: all ranks left together at the end of a step
  TimePoint at;
};
struct GroupPlaced {
  uint64_t generation = 0;
  int world_size = 0;
  int nnodes = 0;
  TimePoint at;
};
// A worker of another node has ended; its agent restarts it or gives up.
struct WorkerEndedElsewhere {
  int node = 0;
  Broken end;
};
// Another node's agent has decided about a restart.
struct DecidedElsewhere {
  int node = 0;
  RestartDecision decision;
};
// BrokenBefore: a node joined before the first placement, and tells how its earlier group ended.
using GroupNews = std::variant<GroupBroke, GroupPlaced, BrokenBefore, WorkerEndedElsewhere, DecidedElsewhere>;
using CoordinatorOutput = std::variant<Send, Close, BeginGeneration, AskStore, Note, GroupNews>;

// ---- state ----

struct Node {
  ConnectionId connection = 0;  // 0: lost
  uint32_t attempt = 0;
  uint64_t incarnation = 0;
  std::string host;
  int nproc = 1;
  bool ready = false;
  std::string terms;               // of its workers when they were last ready since it joined; empty: not known
  std::vector<StateClaim> claims;  // as in its newest NodeReady
  int leaving_code = 0;            // 130 or 143: it leaves and is not placed again
  bool has_trained = false;        // its workers hold steps, or have committed some before it joined
  bool done = false;               // for the status page: the job ends with the first done node
  bool member = false;             // of the newest group
  uint64_t placed = 0;  // generation of its newest placement; its messages with a lower one are about earlier groups
  uint64_t newest_group = 0;  // the same, and it stays when the agent loses its connection and joins again
  TimePoint last_heard;
  std::vector<WorkerBeat> workers;
  bool has_sent_steps = true;  // `workers` is not older than the end of its group
  std::set<int> killed;        // local ranks that were killed because they hung, since it joined or was placed
};

// A connection that has greeted and not (yet) joined.
struct Greeting {
  Greet greet;
  TimePoint since;
};

// A node number that was given to an agent which has not joined with it yet.
struct GivenNumber {
  uint64_t incarnation = 0;
  TimePoint since;
};
// So long nobody else gets it.
inline constexpr std::chrono::seconds kNumberHeld{60};

enum class GroupState {
  kNone,    // the first group has not been placed
  kPlaced,  // the members have their placement
  kBroken,  // ended: waiting for everybody to be ready
  kEnded,   // the job is over
};

// Numbers of nodes, updated with every change of a node, so that no event has to count all nodes.
struct NodeTally {
  int connected = 0;
  int ready = 0;            // can be placed: connected, ready, not leaving
  int staying = 0;          // connected, not leaving
  int staying_members = 0;  // of these, in the newest group
  int awaited = 0;          // members of the newest group that are not ready and not leaving; they may be lost
};

struct CoordinatorState {
  CoordinatorOptions options;
  uint32_t counter = 0;  // lower half of the newest generation
  GroupState group = GroupState::kNone;
  uint64_t placed = 0;        // generation of the newest group; below generation() when an agent knew a higher one
  std::map<int, Node> nodes;  // by node rank; those that joined at least once
  std::unordered_map<ConnectionId, int> rank_of;  // of the connections that have joined
  NodeTally tally;
  std::vector<int> members;  // node ranks of the newest group, ascending
  std::map<ConnectionId, Greeting> greetings;
  std::map<int, GivenNumber> given_numbers;  // by node rank
  bool regrouping = false;                   // the members were told to leave together
  int stop_code = 0;                         // 130 or 143: the whole job stops
  std::string cause;                         // why the group ended
  TimePoint waiting_since{};               // when the group ended; before the first group: when the coordinator started
  TimePoint worked_at{};                   // newest progress of a worker in long work of its own
  std::optional<TimePoint> leaving_since;  // when a member asked to leave; the others have kLeaveGather to do so, too
  TimePoint regrouping_until{};            // members that have not left by then are cut
  std::map<int, int> held;         // by node rank: 130 or 143 of nodes that asked to leave, and are held for rank 0
  std::optional<EndJob> last_end;  // how the job ends after the last group
  std::optional<EndJob> end;
  TimePoint ended_at{};
  bool has_trained = false;      // some node has, as far as this coordinator has heard
  int64_t checkpoint_step = -1;  // of the newest checkpoint that a node reported
  int64_t stuck_step = -1;       // highest step at which a stuck group was broken
  // How many groups in a row broke before their first step, and when the first did.
  int groups_without_step = 0;
  TimePoint without_step_since{};
  std::optional<int64_t> first_step;  // of rank 0 when it began to train in the newest group
  int64_t step_before = 0;            // that its ranks, or the newest checkpoint, had when it was placed
  bool has_stepped = false;           // a rank of it has shown a later step
  std::string broke_because;          // the message of the newest break
  TimePoint last_event{};
  bool started = false;
  TimePoint next_beat{};
  // Before this time no node can have been silent for too long. Computed at each scan of all nodes, so that events need
  // no scan.
  std::optional<TimePoint> next_silence;
  std::optional<TimePoint> deadline;  // when a Tick is wanted
  std::string last_wait_reason;       // noted already; the same reason is not noted again
  StragglerView stragglers;

  explicit CoordinatorState(const CoordinatorOptions& coordinator_options) : options(coordinator_options) {}
  [[nodiscard]] uint64_t generation() const { return make_generation(options.attempt, counter); }
};

std::vector<CoordinatorOutput> step(CoordinatorState& state, const CoordinatorEvent& event, TimePoint now);

// Which nodes would be placed now, or why none, while there is no group. Only computes the decision.
struct MembershipDecision {
  std::vector<int> members;  // node ranks, ascending; empty = not now
  std::string reason;        // in words
  bool gives_up = false;     // the job ends, after rendezvous_timeout without a working group
};
MembershipDecision decide_membership(const CoordinatorState& state, TimePoint now);

// True when node 0's agent, and its coordinator with it, may end: the job has ended, and every other node has been told
// so and has disconnected. When the job is complete, members that are lost at that time are waited for, too, for at
// most rejoin_timeout, because otherwise they would look for a coordinator that is gone. The same holds for all other
// nodes when node 0 was started again after the job was complete.
bool may_leave(const CoordinatorState& state, TimePoint now);

}  // namespace lockstep
