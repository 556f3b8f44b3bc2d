// Coordinator: who is in the group, in which generation. Pure. (architecture §3)
//
// Role: the membership state machine of node 0's agent. It hears what the nodes' agents say (contract/coordination.h)
// and answers with placements, cuts and the end. Everything it knows is soft: a coordinator that starts anew learns it
// from the agents that join.
//
// What must hold, whatever is lost, late, doubled or out of order (tests/runner/recovery/membership_simulation):
//   1. At most one group per generation, and its members all have the same placement. Generations rise; a new
//      coordinator's are above every earlier one's, because the upper half is its attempt.
//   2. A new group is placed only when the one before it is broken, and every member is ready: its workers wait and
//      hold no group. Node 0 is always a member, so that no two groups of one coordinator can both commit.
//   3. As long as min_nodes are ready, a group forms within rejoin_timeout (the first one: and dns_ttl).
//   4. Complete for one is complete for all.
//
// A group ends in one of two ways. Broken: a member was lost or said so; all are cut at once, the step in flight is
// redone. Regrouped: the members were asked to leave together at a step's end, because a node leaves or more can join.
// Then the next group is placed: at once when wanted_nodes are ready, or when nobody of the last group is missing;
// after rejoin_timeout with those that are ready. After rendezvous_timeout with too few the job ends; whoever shows
// progress in long work of its own (data, an evaluation, a restore, a checkpoint) is waited for meanwhile.
//
// A group in which no step is done before its ranks lose each other (closed ports, a wrong interface) is tried again
// after a pause that doubles, and for rendezvous_timeout in all.
//
// All nodes must run the same (terms, contract/messages.h). Node 0 is in every group: a node that is ready with other
// terms than node 0's is refused with the words that name the difference. That it has its workers' terms is known no
// earlier than that they are ready.
//
// Hangs: a rank that is late by itself is killed. Where all wait, in a collective or for their devices, the group is
// broken first: whoever can leaves with its state, and who still sits there is killed by its agent (supervisor.h) or as
// late by itself. A group that is stuck again at the same step is killed as a whole.
//
// Cost: an event looks at its own node alone, O(log nodes). What looks at all nodes (beats, silence, stalls, the words
// of a wait) happens once in kBeatInterval, when somebody's silence is due, or with a change that is told to all of
// them.
// Threads: none. Time is an argument; the caller sends CoordinatorTick at `deadline`. Every decision says why (Note,
// cause).
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

#include "runner/contract/coordination.h"
#include "runner/contract/generation.h"
#include "runner/recovery/straggler.h"

namespace lockstep {

using TimePoint = std::chrono::steady_clock::time_point;
using ConnectionId = uint64_t;  // given by the caller, never 0, never used twice

// When a node says that it leaves, the others are likely to say so too (a suspend, a drain): this long is waited for
// them, so that the job stops at one step with a checkpoint rather than going on with fewer for a moment.
inline constexpr std::chrono::milliseconds kLeaveGather{2000};
// Workers of one node; more is a mistake.
inline constexpr int kNprocMax = 1024;
// Pause before the next group, after the second one in a row that came to nothing; doubles with each, up to the
// maximum.
inline constexpr std::chrono::seconds kWithoutStepPauseInitial{1};
inline constexpr std::chrono::seconds kWithoutStepPauseMax{30};
// The causes of a break when a node is gone, leaves, or can be let in. (Those of a worker: exit_reason.)
inline constexpr const char* kNodeLost = "NodeLost";
inline constexpr const char* kNodeLeaves = "Leave";
inline constexpr const char* kNodeJoins = "Join";
// After a look at all nodes for one that is silent, so long until the next: thousands may fall silent one by one.
inline constexpr std::chrono::milliseconds kSilenceGather{50};
// Greetings that have not joined, for each node that there may be: an agent that starts again or tries several
// addresses has more than one.
inline constexpr size_t kGreetingsPerNode = 4;

struct CoordinatorOptions {
  std::string job;
  std::string token;
  uint32_t attempt = 0;  // upper half of every generation
  int min_nodes = 1;
  int max_nodes = 1;
  int wanted_nodes = 1;                              // min_nodes … max_nodes; changed by SetWantedNodes
  std::chrono::milliseconds rejoin_timeout{30'000};  // wait for a node before going on with fewer
  // Too few nodes for this long, and as long without progress of those that are there, end the job with 10.
  std::chrono::milliseconds rendezvous_timeout{300'000};
  std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout;
  // No sign of progress from a worker. When the others have waited for long, less is enough.
  std::chrono::milliseconds stall_timeout{600'000};
  // Added to rejoin_timeout for the first group. Survivors of a lost node 0 hold the newest state and find its
  // successor only when the old address is forgotten; without them the group would fall back to a checkpoint.
  std::chrono::milliseconds dns_ttl{0};
};

// ---- events ----

struct NodeSaid {
  ConnectionId connection = 0;
  MemberMessage message;
};
struct ConnectionEnded {
  ConnectionId connection = 0;
  std::string why;
};
struct SetWantedNodes {
  int nodes = 0;
};
struct CoordinatorTick {};
using CoordinatorEvent = std::variant<NodeSaid, ConnectionEnded, SetWantedNodes, CoordinatorTick>;

// ---- outputs ----

struct Send {
  ConnectionId connection = 0;
  CoordinatorMessage message;
};
// After what was sent before. The coordinator has forgotten the connection: a ConnectionEnded for it is ignored, what
// is still said on it is answered by another Close.
struct Close {
  ConnectionId connection = 0;
};
struct BeginGeneration {  // the store of `generation` takes the place of the one before; comes before the placements
  uint64_t generation = 0;
};
// A store request of a member; the caller's KeyValueStore answers it with StoreAnswerTo.
struct AskStore {
  ConnectionId connection = 0;
  int local_rank = 0;
  StoreRequest request;
};
// A decision or an observation, in words, said once. One line, whatever is quoted in it.
struct Note {
  std::string text;
  bool is_warning = false;
  bool is_refusal = false;  // of somebody who may come as often as he likes: the caller limits these
};
using CoordinatorOutput = std::variant<Send, Close, BeginGeneration, AskStore, Note>;

// ---- state ----

struct Node {
  ConnectionId connection = 0;  // 0: lost
  uint32_t attempt = 0;
  uint64_t incarnation = 0;
  std::string host;
  int nproc = 1;
  bool ready = false;
  std::string terms;     // of its workers when they were ready last, since it joined; empty: not known
  int leaving_code = 0;  // 130 or 143: not to be placed again
  bool done = false;     // for people: the job ends with the first one
  bool member = false;   // of the newest group
  uint64_t placed = 0;   // generation of its newest placement; what it said before is not about that group
  TimePoint last_heard;
  std::vector<WorkerBeat> workers;
  std::set<int> killed;  // local ranks that hung, since it joined or was placed
};

// A connection that has greeted and not (yet) joined.
struct Greeting {
  Greet greet;
  TimePoint since;
};

enum class GroupState {
  kNone,    // the first group has not been placed
  kPlaced,  // the members have their placement
  kBroken,  // ended: waiting for everybody to be ready
  kEnded,   // the job is over
};

// Counts over `nodes`, kept up with every change, so that no event has to look at all of them.
struct NodeTally {
  int connected = 0;
  int ready = 0;            // can be placed: connected, ready, not leaving
  int staying = 0;          // connected, not leaving
  int staying_members = 0;  // of these, in the newest group
  int awaited = 0;          // of the newest group, not ready, expected to be: not leaving, perhaps lost
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
  bool regrouping = false;                 // the members were told to leave together
  int stop_code = 0;                       // the whole job stops
  std::string cause;                       // why the group ended
  TimePoint waiting_since{};               // since when there is no group
  TimePoint worked_at{};                   // newest progress of a worker in long work of its own
  std::optional<TimePoint> leaving_since;  // a member has said that it leaves; the others are given kLeaveGather
  TimePoint regrouping_until{};            // they are cut then
  std::optional<EndJob> end;
  TimePoint ended_at{};
  int64_t checkpoint_step = -1;  // newest that was told
  int64_t stuck_step = -1;       // furthest at which a group that was stuck was broken
  // Groups in a row that came to nothing because their ranks lost each other, and since when.
  int groups_without_step = 0;
  TimePoint without_step_since{};
  std::optional<int64_t> first_step;  // that rank 0 showed while it trained in the newest group
  bool has_stepped = false;           // it has shown another one since
  std::string broke_because;          // the words of the newest break
  TimePoint last_event{};
  bool started = false;
  TimePoint next_beat{};
  // Nobody will have been silent for too long before; as of the newest look at all nodes, so that no event needs one.
  std::optional<TimePoint> next_silence;
  std::optional<TimePoint> deadline;  // when a Tick is wanted
  std::string last_wait_reason;       // said once
  StragglerView stragglers;

  explicit CoordinatorState(const CoordinatorOptions& coordinator_options) : options(coordinator_options) {}
  [[nodiscard]] uint64_t generation() const { return make_generation(options.attempt, counter); }
};

std::vector<CoordinatorOutput> step(CoordinatorState& state, const CoordinatorEvent& event, TimePoint now);

// Who would be placed now, and why (not): the decision alone, while there is no group.
struct MembershipDecision {
  std::vector<int> members;             // node ranks, ascending; empty = not now
  std::string reason;                   // in words
  std::optional<TimePoint> look_again;  // when time alone may change the decision
  bool gives_up = false;                // too few for rendezvous_timeout
};
MembershipDecision decide_membership(const CoordinatorState& state, TimePoint now);

// May node 0's agent end, and its coordinator with it? When the job has ended and every other node has been told and
// has gone. A member that was lost just then is waited for, rejoin_timeout at most: without an answer it would look for
// a coordinator of a job that is complete. So is everybody when node 0 came back to a complete job.
bool may_leave(const CoordinatorState& state, TimePoint now);

}  // namespace lockstep
