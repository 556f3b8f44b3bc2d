#include "runner/recovery/coordinator.h"

#include <algorithm>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/clock.h"
#include "runner/base/one_line.h"
#include "runner/base/same_secret.h"
#include "runner/contract/agreement.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/recovery/restart_policy.h"
#include "runner/recovery/state_source.h"

namespace lockstep {
namespace {

// What the user can do, at the end of the message for a job that ends because nodes are missing.
constexpr const char* kWhatToDoWithoutNodes =
    "; see their logs, allow fewer with --nnodes MIN:MAX, or wait longer with --rendezvous_timeout_seconds";
// The same for a job that ends because the ranks of its groups lost each other again and again before the first step.
constexpr const char* kWhatToDoWithoutStep =
    "; do the nodes reach each other on all ports, and through the interface that GLOO_SOCKET_IFNAME or "
    "NCCL_SOCKET_IFNAME names?";
// The cause that a node reports when its workers lost a peer and do not know why.
std::string peer_lost() { return exit_reason(code_of(ExitCode::kPeerLost)); }
// Estimated time that a worker needs to start and to read its data.
constexpr std::chrono::milliseconds kTimeToComeBack{60'000};
// Most nodes that one message names; of the others it gives only the number.
constexpr int kNodesNamedMax = 8;
// Highest counter (lower half of a generation) that an agent may claim to have seen; a higher one is a mistake. The
// limit leaves room for the generations that follow.
constexpr uint32_t kCounterMax = uint32_t{1} << 31U;

// True when the node can be a member of the next group. (A lost node is not `ready`.)
bool can_be_placed(const Node& node) { return node.ready && node.leaving_code == 0; }

// Adds the node to the tally (sign +1) or takes it out (sign -1).
void count(NodeTally& tally, const Node& node, int sign) {
  const bool stays = node.connection != 0 && node.leaving_code == 0;
  if (node.connection != 0) tally.connected += sign;
  if (can_be_placed(node)) tally.ready += sign;
  if (stays) tally.staying += sign;
  if (stays && node.member) tally.staying_members += sign;
  if (node.member && !node.ready && node.leaving_code == 0) tally.awaited += sign;
}

const char* why_missing(const CoordinatorState& state, int rank) {
  const auto at = state.nodes.find(rank);
  if (at == state.nodes.end()) return "not joined";
  const Node& node = at->second;
  if (node.leaving_code != 0) return "leaving";
  if (node.connection == 0) return "lost";
  return "its workers are not ready";
}

// "1 of 2 nodes are ready; missing: node 1 (lost)"
std::string who_is_missing(const CoordinatorState& state) {
  std::string text = std::to_string(state.tally.ready) + " of " + std::to_string(state.options.wanted_nodes) +
                     " nodes are ready; missing: ";
  int missing = 0;
  for (int rank = 0; rank < state.options.wanted_nodes; ++rank) {
    const auto at = state.nodes.find(rank);
    if (at != state.nodes.end() && can_be_placed(at->second)) continue;
    if (++missing > kNodesNamedMax) continue;
    if (missing > 1) text += ", ";
    text += "node " + std::to_string(rank) + " (" + why_missing(state, rank) + ")";
  }
  if (missing > kNodesNamedMax) text += " and " + std::to_string(missing - kNodesNamedMax) + " more";
  return text;
}

// How long a group waits for wanted nodes before it is placed with fewer.
std::chrono::milliseconds rejoin_wait(const CoordinatorState& state) {
  const CoordinatorOptions& options = state.options;
  return options.rejoin_timeout + (state.group == GroupState::kNone ? options.dns_ttl : std::chrono::milliseconds{0});
}

// True when there is no group and one is to be formed.
bool is_waiting(const CoordinatorState& state) {
  return (state.group == GroupState::kNone || state.group == GroupState::kBroken) && state.stop_code == 0;
}

bool lost_each_other(const CoordinatorState& state) {
  return state.cause == peer_lost() || state.cause == exit_reason(code_of(ExitCode::kTimeout));
}

// True when the newest group broke before it had finished a step. (Its ranks may also have left it together.)
bool had_no_step(const CoordinatorState& state) {
  const bool left_together = state.cause == kNodeLeaves || state.cause == kNodeJoins;
  return state.group == GroupState::kBroken && !left_together && !state.has_stepped;
}

bool holds_steps(const WorkerBeat& worker) { return worker.step > 0; }

// True when ranks hold steps that would be lost if all ended now: they are in no checkpoint, and rank 0, which alone
// writes checkpoints, was started again and has not got the state yet.
bool rank_zero_lacks_the_state(const CoordinatorState& state) {
  if (!state.options.ranks_keep_state) return false;
  const auto first = state.nodes.find(0);
  if (first == state.nodes.end() || first->second.connection == 0) return false;
  const std::vector<WorkerBeat>& workers = first->second.workers;
  const bool has_it = std::any_of(workers.begin(), workers.end(),
                                  [](const WorkerBeat& w) { return w.local_rank == 0 && holds_steps(w); });
  const auto is_unwritten = [&](const WorkerBeat& w) { return holds_steps(w) && w.step > state.checkpoint_step; };
  return !has_it && std::any_of(state.nodes.begin(), state.nodes.end(), [&](const auto& entry) {
    const Node& node = entry.second;
    const bool may_hold = node.connection != 0 && !node.has_sent_steps;
    return may_hold || std::any_of(node.workers.begin(), node.workers.end(), is_unwritten);
  });
}

// True during the pause before the next group is placed. There is no pause after the first group without a step: one
// loss may hit any moment. The end of a pause needs no deadline of its own: the Ticks for the beats come often enough.
bool pauses(const CoordinatorState& state, TimePoint now) {
  if (state.group != GroupState::kBroken || state.groups_without_step < 2) return false;
  const int doublings = std::clamp(state.groups_without_step - 2, 0, 5);
  return now < state.waiting_since + std::min(kWithoutStepPauseInitial * (1 << doublings), kWithoutStepPauseMax);
}

// True when node 0 and enough other nodes are ready, and there is no reason to wait for more.
bool could_be_placed(const CoordinatorState& state, TimePoint now) {
  const auto first = state.nodes.find(0);
  const bool has_first = first != state.nodes.end() && can_be_placed(first->second);
  if (!has_first || state.tally.ready < state.options.min_nodes) return false;
  const bool has_wanted = state.tally.ready >= state.options.wanted_nodes;
  const bool has_all_old_members = state.group == GroupState::kBroken && state.tally.awaited == 0;
  const bool has_waited = now >= state.waiting_since + rejoin_wait(state);
  return has_wanted || has_all_old_members || has_waited;
}

// True for work of its own that may take a worker minutes, and in which it waits for no peer.
bool is_long_work(const WorkerBeat& beat) {
  if (waits_for_a_peer(beat)) return false;
  switch (beat.activity) {
    case Activity::kLoading:
    case Activity::kRestoring:
    case Activity::kEvaluating:
    case Activity::kCheckpointing:
      return true;
    case Activity::kAwaiting:
    case Activity::kForming:
    case Activity::kTraining:
    case Activity::kStopping:
      break;
  }
  return beat.phase == Phase::kCheckpointStall;
}

// When the job ends because no group could be formed. Progress of a worker in long work delays this, because its node
// will become ready; a node that is absent or hangs may never become ready.
TimePoint gives_up_at(const CoordinatorState& state) {
  return std::max(state.waiting_since, state.worked_at) + state.options.rendezvous_timeout;
}

// The decision of decide_membership without its reason in words, and so cheap enough to be made at every event.
enum class Verdict { kPlace, kWait, kGiveUp, kGiveUpWithoutStep };
Verdict judge(const CoordinatorState& state, TimePoint now) {
  if (could_be_placed(state, now)) {
    if (pauses(state, now)) return Verdict::kWait;
    const bool has_tried_long_enough =
        state.groups_without_step > 1 && now >= state.without_step_since + state.options.rendezvous_timeout;
    return has_tried_long_enough ? Verdict::kGiveUpWithoutStep : Verdict::kPlace;
  }
  return now >= gives_up_at(state) ? Verdict::kGiveUp : Verdict::kWait;
}

// While there is no group, a worker that has shown no progress for this long is killed. The job ends after
// rendezvous_timeout without a group; this time is shorter, so that the worker that is started in its place can still
// become ready.
std::chrono::milliseconds stall_timeout_without_group(const CoordinatorOptions& options) {
  return std::max(options.rendezvous_timeout / 2, options.rendezvous_timeout - kTimeToComeBack);
}

// The next time at which the decision may change although no event comes.
std::optional<TimePoint> next_decision(const CoordinatorState& state, TimePoint now) {
  std::optional<TimePoint> next;
  for (const TimePoint at : {state.waiting_since + rejoin_wait(state), gives_up_at(state)}) {
    if (at > now && (!next || at < *next)) next = at;
  }
  return next;
}

// The ready nodes with the lowest ranks, at most wanted_nodes.
std::vector<int> lowest_ready(const CoordinatorState& state) {
  std::vector<int> ranks;
  for (const auto& [rank, node] : state.nodes) {
    if (static_cast<int>(ranks.size()) == state.options.wanted_nodes) break;
    if (can_be_placed(node)) ranks.push_back(rank);
  }
  return ranks;
}

// What ended a group, as far as it is known: fields of GroupBroke.
struct Lost {
  int rank = -1;
  double detection_seconds = -1.0;
};

// One call of step(): changes the state and collects the outputs.
class CoordinatorStepper {
 public:
  CoordinatorStepper(CoordinatorState& state, TimePoint now) : s_(state), now_(now) {}

  std::vector<CoordinatorOutput> take() && { return std::move(out_); }

  void begin() {
    if (!s_.started) {
      s_.started = true;
      s_.waiting_since = now_;
      s_.next_beat = now_ + kBeatInterval;
    } else if (now_ - s_.last_event > std::max(s_.options.heartbeat_timeout / 2, kAsleepMin)) {
      shift_deadlines(now_ - s_.last_event);
    }
    s_.last_event = now_;
  }

  void operator()(const NodeSent& sent) {
    if (const auto at = s_.rank_of.find(sent.connection); at != s_.rank_of.end()) {
      const int rank = at->second;
      Node& node = s_.nodes.at(rank);
      node.last_heard = now_;
      std::visit([&](const auto& message) { on_message(rank, node, message); }, sent.message);
    } else if (const auto* greet = std::get_if<Greet>(&sent.message)) {
      answer(sent.connection, *greet);
    } else if (const auto* join = std::get_if<Join>(&sent.message)) {
      admit(sent.connection, *join);
    } else {
      s_.greetings.erase(sent.connection);
      close(sent.connection);
    }
  }

  void operator()(const ConnectionEnded& ended) {
    s_.greetings.erase(ended.connection);
    const auto at = s_.rank_of.find(ended.connection);
    if (at != s_.rank_of.end()) lose(at->second, End::kClosed, "its connection ended: " + ended.why);
  }

  void operator()(const SetWantedNodes& wanted) {
    const int nodes = std::clamp(wanted.nodes, s_.options.min_nodes, s_.options.max_nodes);
    if (nodes == s_.options.wanted_nodes) return;
    note("wanted nodes: " + std::to_string(nodes) + " (were " + std::to_string(s_.options.wanted_nodes) + ")");
    s_.options.wanted_nodes = nodes;
  }

  void operator()(const CoordinatorTick&) {
    const bool may_be_silent = s_.next_silence && now_ >= *s_.next_silence;
    if (now_ >= s_.next_beat || may_be_silent) lose_the_silent();
    if (now_ >= s_.next_beat) beat();
  }

  // Carries out what follows from the state after the event. When the decision is to wait, its reason in words is made
  // only at a Tick, because that takes a scan of all nodes.
  void settle(bool is_tick) {
    if (!s_.held.empty() && !s_.end && !rank_zero_lacks_the_state(s_)) release_the_held();
    if (s_.group == GroupState::kPlaced) settle_placed();
    if (is_waiting(s_) && (is_tick || judge(s_, now_) != Verdict::kWait)) settle_waiting();
  }

  void set_deadline() {
    s_.deadline = s_.next_beat;
    if (s_.next_silence) tick_at(*s_.next_silence);
    if (s_.leaving_since) tick_at(*s_.leaving_since + kLeaveGather);
    if (s_.regrouping) tick_at(s_.regrouping_until);
    if (const auto next = next_decision(s_, now_); next && is_waiting(s_)) tick_at(*next);
  }

 private:
  // Notes quote text that nodes send (host, job, messages). As one line, such text cannot imitate lines of the log.
  void note(const std::string& text) { out_.emplace_back(Note{.text = one_line(text)}); }
  void warn(const std::string& text) { out_.emplace_back(Note{.text = one_line(text), .is_warning = true}); }
  void send(const Node& node, CoordinatorMessage message) {
    if (node.connection != 0) out_.emplace_back(Send{node.connection, std::move(message)});
  }
  void close(ConnectionId connection) { out_.emplace_back(Close{connection}); }
  void report(GroupNews news) { out_.emplace_back(std::move(news)); }
  void tick_at(TimePoint at) { s_.deadline = std::min(*s_.deadline, at); }

  // Makes a change of a node that may change the tally.
  template <typename Change>
  void change(Node& node, const Change& make_change) {
    count(s_.tally, node, -1);
    make_change(node);
    count(s_.tally, node, +1);
  }

  [[nodiscard]] static std::string name(int rank, const Node& node) {
    return "node " + std::to_string(rank) + (node.host.empty() ? "" : " (" + node.host + ")");
  }

  template <typename Act>
  void for_members(const Act& act) {
    for (const int rank : s_.members) {
      if (const auto at = s_.nodes.find(rank); at != s_.nodes.end()) act(at->second);
    }
  }

  // This process did not run for `gap` (it was stopped, or the machine was paused). It could receive no message in that
  // time, so all deadlines are shifted by it.
  void shift_deadlines(std::chrono::steady_clock::duration gap) {
    for (auto& [rank, node] : s_.nodes) node.last_heard += gap;
    for (auto& [connection, greeting] : s_.greetings) greeting.since += gap;
    for (auto& [rank, given] : s_.given_numbers) given.since += gap;
    s_.waiting_since += gap;
    s_.worked_at += gap;
    s_.regrouping_until += gap;
    s_.without_step_since += gap;
    if (s_.leaving_since) *s_.leaving_since += gap;
    s_.ended_at += gap;
    warn("the coordinator did not run for " + seconds_text(std::chrono::duration_cast<std::chrono::milliseconds>(gap)) +
         "; no node counts as lost for that time");
  }

  // ---- greeting and joining ----

  void refuse(ConnectionId connection, std::string message, bool retry) {
    out_.emplace_back(Note{.text = one_line("refused: " + message), .is_warning = true, .is_refusal = true});
    out_.emplace_back(Send{connection, Refused{std::move(message), retry}});
    close(connection);
  }

  void answer(ConnectionId connection, const Greet& greet) {
    s_.greetings.erase(connection);
    const std::string who = greet.node_rank == kAnyNode ? "the agent on " + greet.host
                                                        : "the agent of node " + std::to_string(greet.node_rank);
    if (greet.protocol != kCoordinationProtocol) {
      return refuse(connection,
                    who + " speaks protocol " + std::to_string(greet.protocol) + ", the coordinator " +
                        std::to_string(kCoordinationProtocol) + ": run the same version of lockstep on all nodes",
                    false);
    }
    if (greet.job != s_.options.job) {
      return refuse(connection,
                    who + " belongs to job \"" + greet.job + "\", the coordinator at this address to job \"" +
                        s_.options.job + "\": check --coordinator and " + std::string(env::kJob),
                    false);
    }
    if (!same_secret(s_.options.token, greet.token)) {
      return refuse(connection,
                    who + " has another token than the coordinator: " + std::string(env::kToken) +
                        " must be the same on all nodes of a job",
                    false);
    }
    if (greet.node_rank == kAnyNode) return give_number(connection, greet);
    if (greet.node_rank < 0 || greet.node_rank >= s_.options.max_nodes) {
      return refuse(connection,
                    who + " has a node rank out of range: expected 0 to " + std::to_string(s_.options.max_nodes - 1) +
                        "; check --node_rank and --nnodes",
                    false);
    }
    if (s_.greetings.size() >= kGreetingsPerNode * static_cast<size_t>(s_.options.max_nodes)) {
      return refuse(connection, who + " must wait: too many connections have greeted and not joined yet", true);
    }
    s_.greetings.emplace(connection, Greeting{greet, now_});
    out_.emplace_back(Send{connection, Welcome{s_.generation()}});
  }

  // The lowest number that no connected node has, and that was not given away a moment ago. Node 0 is this one.
  void give_number(ConnectionId connection, const Greet& greet) {
    for (int rank = 1; rank < s_.options.max_nodes; ++rank) {
      const auto node = s_.nodes.find(rank);
      if (node != s_.nodes.end() && node->second.connection != 0) continue;
      const auto given = s_.given_numbers.find(rank);
      const bool is_held = given != s_.given_numbers.end() && given->second.incarnation != greet.incarnation &&
                           now_ - given->second.since < kNumberHeld;
      if (is_held) continue;
      s_.given_numbers[rank] = {.incarnation = greet.incarnation, .since = now_};
      out_.emplace_back(Send{connection, NodeNumber{rank}});
      return close(connection);
    }
    refuse(connection,
           "the agent on " + greet.host + " has no --node_rank, and all " + std::to_string(s_.options.max_nodes) +
               " nodes (--nnodes) are there",
           true);
  }

  // Handles a Join. A connection that has not greeted is closed.
  void admit(ConnectionId connection, const Join& join) {
    const auto at = s_.greetings.find(connection);
    if (at == s_.greetings.end()) return close(connection);
    const Greet greet = std::move(at->second.greet);
    s_.greetings.erase(at);
    if (!may_join(connection, greet, join)) return;
    add_node(connection, greet, join);
  }

  bool may_join(ConnectionId connection, const Greet& greet, const Join& join) {
    const std::string who = "the agent of node " + std::to_string(greet.node_rank);
    if (attempt_of(join.generation) > s_.options.attempt) {
      refuse(connection,
             who + " has seen a coordinator of attempt " + std::to_string(attempt_of(join.generation)) +
                 ", this one is of attempt " + std::to_string(s_.options.attempt) + ": it must find the newer one",
             true);
      return false;
    }
    if (attempt_of(join.generation) == s_.options.attempt && counter_of(join.generation) > kCounterMax) {
      refuse(connection, who + " claims to have seen generation " + generation_text(join.generation), false);
      return false;
    }
    if (join.nproc < 1 || join.nproc > kNprocMax) {
      refuse(connection,
             who + " starts " + std::to_string(join.nproc) + " workers; 1 to " + std::to_string(kNprocMax) +
                 " are possible: check --nproc",
             false);
      return false;
    }
    if (const auto other = other_node(greet.node_rank); other && other->second != join.nproc) {
      refuse(connection,
             who + " starts " + std::to_string(join.nproc) + " workers, node " + std::to_string(other->first) +
                 " starts " + std::to_string(other->second) + ": --nproc must be the same on all nodes",
             false);
      return false;
    }
    const auto present = s_.nodes.find(greet.node_rank);
    return present == s_.nodes.end() || may_replace(connection, greet, present->second);
  }

  // Rank and nproc of a node other than `rank`. Any other node will do, because all have the same nproc.
  [[nodiscard]] std::optional<std::pair<int, int>> other_node(int rank) const {
    for (const auto& [other, node] : s_.nodes) {
      if (other != rank) return std::pair{other, node.nproc};
    }
    return std::nullopt;
  }

  bool may_replace(ConnectionId connection, const Greet& greet, const Node& present) {
    const std::string who =
        "the agent of node " + std::to_string(greet.node_rank) + ", attempt " + std::to_string(greet.attempt) + ",";
    if (greet.attempt < present.attempt) {
      refuse(connection,
             who + " is superseded by attempt " + std::to_string(present.attempt) +
                 clock_hint(present.attempt, "this node"),
             false);
      return false;
    }
    const bool is_another = greet.attempt == present.attempt && greet.incarnation != present.incarnation;
    if (is_another && present.connection != 0) {
      refuse(connection,
             who + " is there already" + (present.host.empty() ? "" : " (" + present.host + ")") +
                 ": two agents have this node rank, or the earlier one's connection has not timed out yet",
             true);
      return false;
    }
    return true;
  }

  void add_node(ConnectionId connection, const Greet& greet, const Join& join) {
    const int rank = greet.node_rank;
    Node& node = s_.nodes.try_emplace(rank).first->second;
    if (node.connection != 0) dismiss(node, greet);
    const bool leaves_a_group = s_.group == GroupState::kPlaced && node.member;
    change(node, [&](Node& n) {
      if (n.incarnation != greet.incarnation) n.newest_group = 0;
      n.connection = connection;
      n.attempt = greet.attempt;
      n.incarnation = greet.incarnation;
      n.host = greet.host;
      n.nproc = join.nproc;
      n.ready = join.ready;
      n.claims = join.claims;
      n.terms.clear();
      n.leaving_code = 0;
      n.has_trained = join.broken_before.seconds >= 0;
      n.has_sent_steps = !n.has_trained;
      n.done = false;
      n.placed = 0;
      n.last_heard = now_;
      n.workers.clear();
      n.killed.clear();
    });
    s_.rank_of.emplace(connection, rank);
    s_.given_numbers.erase(rank);
    s_.held.erase(rank);
    s_.has_trained = s_.has_trained || node.has_trained;
    // An agent can have seen a higher counter of this attempt only if an earlier coordinator had the same attempt.
    if (attempt_of(join.generation) == s_.options.attempt) {
      s_.counter = std::max(s_.counter, counter_of(join.generation));
    }
    note(name(rank, node) + " has joined, attempt " + std::to_string(node.attempt));
    if (leaves_a_group) break_group(kNodeLost, name(rank, node) + " has lost its connection and joined again");
    if (s_.end) return send(node, *s_.end);
    if (join.ready && !accept_terms(rank, node, join.terms)) return;
    if (s_.placed == 0 && node.has_trained) report(join.broken_before);
    if (s_.stop_code != 0) send(node, StopJob{s_.stop_code});  // the node was lost when the others got it
    if (join.leaving_code != 0) on_message(rank, node, Leave{join.leaving_code});
    if (join.done) on_message(rank, node, NodeDone{});
  }

  // Closes the node's present connection, because the agent that sent `greet` replaces it.
  void dismiss(Node& node, const Greet& greet) {
    if (greet.attempt > node.attempt) {
      send(node,
           Refused{"the agent of node " + std::to_string(greet.node_rank) + ", attempt " +
                       std::to_string(node.attempt) + ", is superseded by attempt " + std::to_string(greet.attempt),
                   false});
    }
    close(node.connection);
    s_.rank_of.erase(node.connection);
    change(node, [](Node& n) { n.connection = 0; });
  }

  // ---- terms ----

  // Records the node's terms. Returns false when the node was refused because of them. The node whose terms count is
  // never refused; instead all nodes that differ from it are.
  bool accept_terms(int rank, Node& node, const std::string& terms) {
    node.terms = terms;
    if (s_.end) return true;
    const int reference = whose_terms_count();
    if (rank != reference) return !refuse_other_terms(rank, reference);
    std::vector<int> others;
    for (const auto& [other, present] : s_.nodes) {
      if (other != rank && present.connection != 0 && present.terms != terms) others.push_back(other);
    }
    for (const int other : others) refuse_other_terms(other, rank);
    return true;
  }

  // Node 0, which is in every group; but the nodes that hold what was trained decide about a node 0 that does not.
  [[nodiscard]] int whose_terms_count() const {
    const auto first = s_.nodes.find(0);
    if (first != s_.nodes.end() && first->second.connection != 0 && first->second.has_trained) return 0;
    for (const auto& [rank, node] : s_.nodes) {
      if (node.connection != 0 && node.has_trained && !node.terms.empty()) return rank;
    }
    return 0;
  }

  // Refuses the node when its terms differ from the reference's. Terms that are not known yet are compared when they
  // arrive.
  bool refuse_other_terms(int rank, int reference) {
    const auto right = s_.nodes.find(reference);
    const Node& node = s_.nodes.at(rank);
    if (right == s_.nodes.end() || right->second.connection == 0) return false;
    const std::string who = name(rank, node);
    const std::string why = disagreement(right->second.terms, name(reference, right->second), node.terms, who);
    if (why.empty()) return false;
    refuse(node.connection, "the agent of " + who + " does not fit: " + why, false);
    lose(rank, End::kClosed, "it was refused");
    return true;
  }

  // ---- messages of a node that has joined ----

  void on_message(int rank, Node& node, const Greet&) { on_repeated_greeting(rank, node); }
  void on_message(int rank, Node& node, const Join&) { on_repeated_greeting(rank, node); }
  void on_repeated_greeting(int rank, const Node& node) {
    close(node.connection);
    lose(rank, End::kClosed, "it greeted or joined twice on one connection");
  }

  void on_message(int rank, Node& node, const NodeReady& report) {
    if (report.generation < node.placed) return;
    if (report.ready && !accept_terms(rank, node, report.terms)) return;
    change(node, [&](Node& n) { n.ready = report.ready; });
    node.claims = report.claims;
    const bool in_group = s_.group == GroupState::kPlaced && node.member && !s_.regrouping;
    if (report.ready && in_group)
      break_group(peer_lost(), "the workers of " + name(rank, node) + " have left the group");
  }

  void on_message(int rank, Node& node, const Broken& broken) {
    if (broken.rank >= 0) {  // that worker's newest beat is of a process that has ended
      std::erase_if(node.workers, [&](const WorkerBeat& w) { return w.local_rank == broken.rank % node.nproc; });
    }
    if (broken.generation != s_.placed || !node.member) return;
    // Ranks of a program leave in the middle of a step. One that has not been told yet sees that another has left.
    const bool leaves_with_the_others = s_.regrouping && broken.rank < 0 && broken.cause == peer_lost();
    if (leaves_with_the_others && !s_.options.ranks_keep_state) return;
    if (rank != 0 && broken.rank >= 0) report(WorkerEndedElsewhere{rank, broken});
    std::string text = name(rank, node) + ": " + (broken.rank < 0 ? "" : "rank " + std::to_string(broken.rank) + ": ") +
                       (broken.message.empty() ? broken.cause : broken.message);
    const Lost lost{broken.rank, broken.detection_seconds};
    if (s_.group == GroupState::kPlaced) return break_group(broken.cause, text, lost);
    if (broken.rank >= 0) set_cause(broken.cause, text, lost);
  }

  // Corrects the cause of the break, because nodes that lost a peer may report before the node that knows why.
  void set_cause(const std::string& cause, const std::string& text, const Lost& lost) {
    if (s_.group != GroupState::kBroken || s_.cause != peer_lost()) return;
    s_.cause = cause;
    s_.broke_because = text;
    report_break(lost, /*step_in_flight=*/true);
    warn("the group of generation " + std::to_string(counter_of(s_.placed)) + " broke because of " + text);
  }

  void on_message(int rank, Node& node, const Heartbeat& heartbeat) {
    const bool are_its_ranks =
        std::all_of(heartbeat.workers.begin(), heartbeat.workers.end(),
                    [&](const WorkerBeat& worker) { return worker.local_rank >= 0 && worker.local_rank < node.nproc; });
    if (!are_its_ranks || heartbeat.workers.size() > static_cast<size_t>(node.nproc)) return;
    node.workers = heartbeat.workers;
    node.has_sent_steps = true;
    node.has_trained = std::any_of(node.workers.begin(), node.workers.end(), holds_steps);
    s_.has_trained = s_.has_trained || node.has_trained;
    for (const WorkerBeat& worker : heartbeat.workers) note_work(worker);
    watch_steps(rank, node);
  }

  void note_work(const WorkerBeat& worker) {
    if (!is_long_work(worker)) return;
    constexpr double kSecondsMax = 1e9;  // a node may send any number, or NaN
    const std::chrono::duration<double> unchanged(std::min(std::max(0.0, worker.seconds_unchanged), kSecondsMax));
    s_.worked_at = std::max(s_.worked_at, now_ - std::chrono::duration_cast<TimePoint::duration>(unchanged));
  }

  // Finds out whether the newest group has finished a step. Rank 0, which is in every group, says at which step it
  // began to train. A group may break so early that this is the first that it says, or before it has said anything: it
  // has stepped when a rank shows a later step than its ranks and the newest checkpoint had when it was placed. (Each
  // node says what its ranks hold when the group is cut.)
  void watch_steps(int rank, const Node& node) {
    for (const WorkerBeat& worker : node.workers) {
      if (worker.generation != s_.placed) continue;
      const bool is_first = rank == 0 && worker.local_rank == 0 && worker.activity == Activity::kTraining;
      if (is_first && !s_.first_step) {
        s_.first_step = s_.step_before > 0 ? std::min(worker.step, s_.step_before) : worker.step;
      }
      const int64_t began = s_.first_step.value_or(s_.step_before);
      s_.has_stepped = s_.has_stepped || (is_first ? worker.step != began : worker.step > began);
    }
    if (s_.has_stepped) s_.groups_without_step = 0;
  }

  void on_message(int /*rank*/, Node& node, const StoreCall& call) {
    const bool is_worker = call.local_rank >= 0 && call.local_rank < node.nproc;
    const bool is_current = s_.group == GroupState::kPlaced && node.member && call.request.generation == s_.placed;
    if (is_worker && is_current) {
      out_.emplace_back(AskStore{node.connection, call.local_rank, call.request});
      return;
    }
    StoreReply reply;
    reply.id = call.request.id;
    if (!is_worker) {
      reply.status = StoreStatus::kInvalid;
      reply.message = "local rank " + std::to_string(call.local_rank) + " asks the store; the node's are 0 to " +
                      std::to_string(node.nproc - 1);
    } else {
      reply.status = StoreStatus::kStale;
      reply.message = "generation " + generation_text(call.request.generation) + " has no store: " +
                      (s_.group == GroupState::kPlaced ? "the group is of generation " + generation_text(s_.placed)
                                                       : std::string("there is no group"));
    }
    send(node, StoreAnswerTo{call.local_rank, std::move(reply)});
  }

  void on_message(int rank, Node& node, const Leave& leave) {
    if (node.leaving_code != 0 || s_.end) return;
    const int interrupted = code_of(ExitCode::kInterrupted);
    const int code = leave.code == interrupted ? interrupted : code_of(ExitCode::kTerminated);
    if (s_.stop_code == 0 && rank_zero_lacks_the_state(s_)) return hold(rank, node, code);
    change(node, [&](Node& n) { n.leaving_code = code; });
    note(name(rank, node) + " leaves");
    const bool placed = s_.group == GroupState::kPlaced;
    if (placed && s_.stop_code == 0 && s_.tally.staying_members == 0) return stop_job(code);
    // Without a group the job stops when all nodes leave, node 0 among them. (Other nodes may join and leave before
    // node 0 joins, or while it is lost for a moment.)
    const auto first = s_.nodes.find(0);
    const bool first_leaves = first != s_.nodes.end() && first->second.leaving_code != 0;
    if (!placed && s_.tally.staying == 0 && first_leaves) s_.stop_code = code;
    // Workers that are in no group stop at once, because they need not agree with others on a step.
    if (s_.stop_code != 0 || !placed || !node.member || node.ready) return send(node, StopJob{code});
    if (s_.regrouping) return send(node, Regroup{s_.placed, true});
    if (!s_.leaving_since) s_.leaving_since = now_;
  }

  void hold(int rank, const Node& node, int code) {
    if (!s_.held.emplace(rank, code).second) return;
    note(name(rank, node) + " is to leave, when rank 0 has got the newest state from the ranks that hold it");
  }

  void release_the_held() {
    for (const auto& [rank, code] : std::exchange(s_.held, {})) on_message(rank, s_.nodes.at(rank), Leave{code});
  }

  void on_message(int /*rank*/, Node& node, const NodeDone&) {
    node.done = true;
    if (!s_.end) end_job(EndJob{0, ""});
  }

  void on_message(int rank, Node& node, const NodeFailed& failed) {
    if (s_.end) return;
    const EndVerdict verdict =
        judge_end({.code = failed.code,
                   .is_configuration_changed = termination_reason(failed.code, failed.message) == kConfigurationChanged,
                   .after_first_commit = s_.has_trained});
    if (verdict.consequence != Consequence::kRestart) {
      return end_job(
          EndJob{failed.code, s_.options.max_nodes > 1 ? name(rank, node) + ": " + failed.message : failed.message});
    }
    send(node, Refused{"this node gave up; the job goes on without it", false});
    close(node.connection);
    lose(rank, End::kClosed, "it gave up (" + exit_reason(failed.code) + "): " + failed.message);
  }

  void on_message(int rank, Node& /*node*/, const RestartDecision& decision) {
    if (rank != 0) report(DecidedElsewhere{rank, decision});
  }

  void on_message(int /*rank*/, Node& node, const CheckpointNews& news) {
    s_.has_trained = true;
    if (news.step <= s_.checkpoint_step) return;
    s_.checkpoint_step = news.step;
    for (const auto& [rank, other] : s_.nodes) {
      if (other.connection != node.connection) send(other, news);
    }
  }

  // ---- losing a node ----

  enum class End { kClosed, kSilent };

  // Handles the loss of a node, whose connection has ended or is about to be closed. When the node was leaving as it
  // was asked to, its group does not break; but one that fell silent meanwhile may have left its peers in a collective.
  void lose(int rank, End end, const std::string& why) {
    const auto at = s_.nodes.find(rank);
    Node& node = at->second;
    const std::string text = name(rank, node) + " is lost: " + why;
    const Lost lost{-1, end == End::kSilent ? seconds_between(node.last_heard, now_) : -1.0};
    s_.rank_of.erase(node.connection);
    const bool in_group = s_.group == GroupState::kPlaced && node.member;
    const bool is_leaving = node.leaving_code != 0 || s_.held.erase(rank) > 0;
    const bool leaves_as_told = is_leaving && end == End::kClosed && (s_.regrouping || s_.stop_code != 0);
    change(node, [](Node& n) {
      n.connection = 0;
      n.ready = false;
      n.workers.clear();
    });
    if (!is_leaving && !s_.end) {
      warn(text);
      if (node.member) set_cause(kNodeLost, text, lost);
    }
    if (in_group && !leaves_as_told) break_group(kNodeLost, text, lost);
    // The node left at the same step as the others, so they must have left soon, too; or its workers never were in the
    // group.
    if (s_.regrouping && is_leaving && node.member) {
      s_.regrouping_until = std::min(s_.regrouping_until, now_ + s_.options.heartbeat_timeout);
    }
    if (!is_leaving && !s_.end) return;
    count(s_.tally, node, -1);
    s_.nodes.erase(at);
  }

  void lose_the_silent() {
    const std::chrono::milliseconds timeout = s_.options.heartbeat_timeout;
    std::vector<int> silent;
    s_.next_silence.reset();
    for (const auto& [rank, node] : s_.nodes) {
      if (node.connection == 0) continue;
      const TimePoint silence = node.last_heard + timeout;
      if (now_ >= silence) {
        silent.push_back(rank);
      } else {
        s_.next_silence = std::min(s_.next_silence.value_or(silence), silence);
      }
    }
    if (s_.next_silence) s_.next_silence = std::max(*s_.next_silence, now_ + kSilenceGather);
    for (const int rank : silent) {
      close(s_.nodes.at(rank).connection);
      lose(rank, End::kSilent, "nothing heard for " + seconds_text(timeout));
    }
    for (auto at = s_.greetings.begin(); at != s_.greetings.end();) {
      const bool is_silent = now_ - at->second.since >= timeout;
      if (is_silent) close(at->first);
      at = is_silent ? s_.greetings.erase(at) : std::next(at);
    }
  }

  // ---- the group ----

  void break_group(const std::string& cause, const std::string& message, const Lost& lost = {}) {
    const bool were_told = s_.regrouping || s_.stop_code != 0;  // the leaving ones: how
    s_.broke_because = message;
    end_group(cause, lost, /*step_in_flight=*/true);
    warn("the group of generation " + std::to_string(counter_of(s_.placed)) + " is broken (" + cause + "): " + message);
    for_members([&](Node& member) {
      member.has_sent_steps = false;
      send(member, CutGroup{s_.placed, cause, message});
    });
    // A node that was to leave together with the others stops now, or is held.
    for (const int rank : s_.members) {
      const auto at = s_.nodes.find(rank);
      if (at == s_.nodes.end() || at->second.leaving_code == 0 || s_.stop_code != 0) continue;
      Node& member = at->second;
      if (were_told || member.connection == 0 || !rank_zero_lacks_the_state(s_)) {
        send(member, StopJob{member.leaving_code});
        continue;
      }
      hold(rank, member, member.leaving_code);
      change(member, [](Node& n) { n.leaving_code = 0; });
    }
  }

  void end_group(const std::string& cause, const Lost& lost, bool step_in_flight) {
    s_.group = GroupState::kBroken;
    s_.cause = cause;
    report_break(lost, step_in_flight);
    s_.waiting_since = now_;
    s_.regrouping = false;
    s_.leaving_since.reset();
    count_group_without_step();
  }

  void report_break(const Lost& lost, bool step_in_flight) {
    report(GroupBroke{.generation = s_.placed,
                      .cause = s_.cause,
                      .rank = lost.rank,
                      .message = s_.broke_because,
                      .detection_seconds = lost.detection_seconds,
                      .step_in_flight = step_in_flight,
                      .at = now_});
  }

  void count_group_without_step() {
    if (!had_no_step(s_)) {
      s_.groups_without_step = 0;
      return;
    }
    if (s_.groups_without_step++ == 0) s_.without_step_since = now_;
  }

  void regroup(const std::string& cause, const std::string& why) {
    s_.regrouping = true;
    s_.regrouping_until = now_ + s_.options.rejoin_timeout;
    s_.cause = cause;
    s_.leaving_since.reset();
    note("the group of generation " + std::to_string(counter_of(s_.placed)) + " leaves together: " + why);
    for_members([&](const Node& member) { send(member, Regroup{s_.placed, member.leaving_code != 0}); });
  }

  // All nodes were asked to leave. The members' workers agree on the step after which they stop.
  void stop_job(int code) {
    s_.stop_code = code;
    s_.regrouping = false;
    s_.leaving_since.reset();
    note("all nodes leave: the job stops");
    for_members([&](const Node& member) { send(member, StopJob{code}); });
  }

  void end_job(EndJob end) {
    s_.end = std::move(end);
    s_.ended_at = now_;
    s_.group = GroupState::kEnded;
    s_.regrouping = false;
    s_.leaving_since.reset();
    if (s_.end->code == 0) {
      note("the job is complete");
    } else {
      warn("the job ends with " + std::to_string(s_.end->code) + ": " + s_.end->message);
    }
    for (const auto& [rank, node] : s_.nodes) send(node, *s_.end);
  }

  void settle_placed() {
    if (s_.stop_code != 0) return;
    if (s_.last_end) {
      if (!rank_zero_lacks_the_state(s_)) end_job(*s_.last_end);
      return;
    }
    if (s_.regrouping) {
      if (s_.tally.awaited == 0) return end_group(s_.cause, {}, /*step_in_flight=*/false);
      if (now_ < s_.regrouping_until) return;
      return break_group(exit_reason(code_of(ExitCode::kTimeout)), "its ranks did not leave it in time");
    }
    if (s_.leaving_since) {
      if (now_ >= *s_.leaving_since + kLeaveGather) regroup(kNodeLeaves, "a node leaves");
      return;
    }
    // Members are not `ready` while they are in the group, so every ready node is one that can be added.
    const bool can_grow = static_cast<int>(s_.members.size()) < s_.options.wanted_nodes && s_.tally.ready > 0;
    if (can_grow) {
      regroup(kNodeJoins,
              std::to_string(s_.tally.ready) + (s_.tally.ready == 1 ? " more node" : " more nodes") + " can join");
    }
  }

  void settle_waiting() {
    if (s_.last_end) return end_job(*s_.last_end);  // the last group broke
    MembershipDecision decision = decide_membership(s_, now_);
    if (decision.gives_up) {
      const EndJob end{code_of(ExitCode::kPeerLost), decision.reason};
      const auto first = s_.nodes.find(0);
      const bool may_save = first != s_.nodes.end() && can_be_placed(first->second) && rank_zero_lacks_the_state(s_);
      if (!may_save) return end_job(end);
      s_.last_end = end;
      decision = {.members = lowest_ready(s_), .reason = "the last group, in which rank 0 gets the newest state"};
    }
    if (!decision.members.empty()) return place(decision);
    if (decision.reason == s_.last_wait_reason) return;
    s_.last_wait_reason = decision.reason;
    note(decision.reason);
  }

  void place(const MembershipDecision& decision) {
    ++s_.counter;
    LOCKSTEP_CHECK(s_.counter != 0, "more than 2^32 generations in one attempt");
    for_members([&](Node& old) { change(old, [](Node& n) { n.member = false; }); });
    s_.placed = s_.generation();
    s_.members = decision.members;
    s_.group = GroupState::kPlaced;
    s_.last_wait_reason.clear();
    s_.step_before = step_of_members();
    s_.first_step.reset();
    s_.has_stepped = false;
    s_.stragglers.forget();
    const int nnodes = static_cast<int>(s_.members.size());
    const std::vector<Plan> plans = plans_of(choose_source(claims_of_members()));
    auto next_plan = plans.begin();
    note("generation " + std::to_string(counter_of(s_.placed)) + ": " + decision.reason);
    out_.emplace_back(BeginGeneration{s_.placed});
    for (int index = 0; index < nnodes; ++index) {
      Node& node = s_.nodes.at(s_.members[static_cast<size_t>(index)]);
      change(node, [&](Node& n) {
        n.ready = false;
        n.member = true;
        n.placed = n.newest_group = s_.placed;
        n.killed.clear();
      });
      const auto first_plan = std::exchange(next_plan, plans.empty() ? next_plan : next_plan + node.nproc);
      send(node, Assignment{.generation = s_.placed,
                            .rank = index * node.nproc,
                            .world_size = nnodes * node.nproc,
                            .local_world_size = node.nproc,
                            .nnodes = nnodes,
                            .declared_world_size = s_.options.wanted_nodes * node.nproc,
                            .address = {},
                            .plans = {first_plan, next_plan}});
    }
    report(GroupPlaced{s_.placed, nnodes * s_.nodes.at(s_.members[0]).nproc, nnodes, now_});
  }

  // The highest step that a rank of the members holds, as their newest beats say, or else that of the newest
  // checkpoint. It is lower than before when the ranks that had a later one are lost, and the next group makes those
  // steps again.
  [[nodiscard]] int64_t step_of_members() const {
    int64_t step = 0;
    for (const int rank : s_.members) {
      for (const WorkerBeat& worker : s_.nodes.at(rank).workers) step = std::max(step, worker.step);
    }
    return step > 0 ? step : std::max<int64_t>(0, s_.checkpoint_step);
  }

  // By rank in the group. A node that missed groups may have gone on without them, behind a network partition, or have
  // a collective's result of another number of ranks: what the ranks of the newest group hold counts as a newer
  // lineage.
  [[nodiscard]] std::vector<StateClaim> claims_of_members() const {
    std::vector<StateClaim> claims;
    for (const int rank : s_.members) {
      const Node& node = s_.nodes.at(rank);
      for (size_t local_rank = 0; local_rank < static_cast<size_t>(node.nproc); ++local_rank) {
        StateClaim claim = local_rank < node.claims.size() ? node.claims[local_rank] : StateClaim{};
        claim.lineage = std::max(claim.lineage, node.newest_group);
        claims.push_back(claim);
      }
    }
    return claims;
  }

  // ---- every kBeatInterval ----

  void beat() {
    s_.next_beat = now_ + kBeatInterval;
    for (const auto& [rank, node] : s_.nodes) send(node, CoordinatorBeat{});
    watch_progress();
  }

  void watch_progress() {
    std::vector<RankBeat> beats;
    if (s_.group == GroupState::kPlaced) {
      for (size_t index = 0; index < s_.members.size(); ++index) {
        const int rank = s_.members[index];
        if (const auto at = s_.nodes.find(rank); at != s_.nodes.end()) {
          collect_beats(beats, rank, at->second, static_cast<int>(index));
        }
      }
      s_.stragglers.add(beats);
    } else if (is_waiting(s_)) {
      // A worker that hangs in work of its own does not notice that its group was cut, and all others wait for it. (One
      // that hangs in a collective is killed by its agent some time after the cut.)
      for (const auto& [rank, node] : s_.nodes) collect_beats(beats, rank, node, rank);
    }
    const std::chrono::milliseconds shorter = stall_timeout_without_group(s_.options);
    const bool have_waited = is_waiting(s_) && now_ - s_.waiting_since >= shorter;
    const auto timeout = have_waited ? std::min(s_.options.stall_timeout, shorter) : s_.options.stall_timeout;
    const std::vector<Stall> stalls = find_stalls(beats, timeout);
    const bool is_stuck = s_.group == GroupState::kPlaced && !stalls.empty() && stalls.front().group_is_stuck;
    // Only once for each step: if the next group is stuck there again, leaving has not helped, and workers are killed.
    if (is_stuck && stalls.front().step > s_.stuck_step) return leave_stuck_group(stalls.front());
    for (const Stall& stall : stalls) kill_hanging(stall);
  }

  void leave_stuck_group(const Stall& stall) {
    s_.stuck_step = stall.step;
    break_group(exit_reason(code_of(ExitCode::kTimeout)),
                stall.message + ", as do all others; they leave the group and go on");
  }

  // Appends the beats of the workers that are in the placed group. When no group is placed: of those that have not left
  // an earlier group and wait for no peer.
  void collect_beats(std::vector<RankBeat>& beats, int rank, const Node& node, int index) const {
    const bool is_placed = s_.group == GroupState::kPlaced;
    for (const WorkerBeat& worker : node.workers) {
      const bool is_in_group =
          is_placed ? worker.generation == s_.placed : worker.generation != 0 && !waits_for_a_peer(worker);
      if (is_in_group) beats.push_back({index * node.nproc + worker.local_rank, rank, worker});
    }
  }

  void kill_hanging(const Stall& stall) {
    Node& node = s_.nodes.at(stall.node_rank);
    if (!node.killed.insert(stall.local_rank).second) return;
    warn(stall.message);
    send(node, KillWorker{stall.local_rank, stall.message});
  }

  CoordinatorState& s_;  // the caller's, for one step
  TimePoint now_;
  std::vector<CoordinatorOutput> out_;
};

}  // namespace

std::vector<CoordinatorOutput> step(CoordinatorState& state, const CoordinatorEvent& event, TimePoint now) {
  CoordinatorStepper stepper(state, now);
  stepper.begin();
  std::visit(stepper, event);
  stepper.settle(std::holds_alternative<CoordinatorTick>(event));
  stepper.set_deadline();
  return std::move(stepper).take();
}

MembershipDecision decide_membership(const CoordinatorState& state, TimePoint now) {
  MembershipDecision decision;
  switch (judge(state, now)) {
    case Verdict::kPlace:
      decision.members = lowest_ready(state);
      decision.reason = std::to_string(decision.members.size()) + " of " + std::to_string(state.options.wanted_nodes) +
                        " wanted nodes are ready";
      break;
    case Verdict::kGiveUp:
      decision.gives_up = true;
      decision.reason = "no group could be formed for " + seconds_text(state.options.rendezvous_timeout) +
                        (state.worked_at > state.waiting_since ? " after the last sign of progress: " : ": ") +
                        who_is_missing(state) + kWhatToDoWithoutNodes;
      break;
    case Verdict::kGiveUpWithoutStep:
      decision.gives_up = true;
      decision.reason = std::to_string(state.groups_without_step) +
                        " groups in a row broke before their first step, within " +
                        seconds_text(state.options.rendezvous_timeout) + "; the last one (" + state.cause +
                        "): " + state.broke_because + (lost_each_other(state) ? kWhatToDoWithoutStep : "");
      break;
    case Verdict::kWait:
      decision.reason = could_be_placed(state, now) ? "pausing: " + std::to_string(state.groups_without_step) +
                                                          " groups in a row broke before their first step"
                                                    : "waiting: " + who_is_missing(state);
      break;
  }
  return decision;
}

bool may_leave(const CoordinatorState& state, TimePoint now) {
  if (!state.end) return false;
  NodeTally others = state.tally;
  if (const auto first = state.nodes.find(0); first != state.nodes.end()) count(others, first->second, -1);
  const bool is_complete = state.end->code == 0;
  // Before its first group this coordinator does not know which other nodes there are.
  const bool some_may_come_back =
      is_complete && (others.awaited > 0 || (state.placed == 0 && state.options.wanted_nodes > 1));
  if (others.connected == 0 && !some_may_come_back) return true;
  std::chrono::milliseconds patience = state.options.heartbeat_timeout;
  if (is_complete) patience = state.options.rejoin_timeout;
  if (is_complete && state.placed == 0) patience += state.options.dns_ttl;
  return now >= state.ended_at + patience;
}

}  // namespace lockstep
