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

namespace lockstep {
namespace {

// About nodes that are missing, when they have been waited for long enough.
constexpr const char* kWhatToDo =
    "; see their logs, allow fewer with --nnodes MIN:MAX, or wait longer with --rendezvous_timeout_seconds";
constexpr const char* kWhatToDoWithoutStep =
    "; do the nodes reach each other on all ports, and through the interface that GLOO_SOCKET_IFNAME or "
    "NCCL_SOCKET_IFNAME names?";
// The cause of a group's end; what a node's workers saw when a peer was gone.
std::string peer_lost() { return exit_reason(static_cast<int>(ExitCode::kPeerLost)); }
// What the start of a worker and the reading of its data may take.
constexpr std::chrono::milliseconds kTimeToComeBack{60'000};
// Nodes named in a sentence; the rest is counted.
constexpr int kNamedMax = 8;
// Of the lower half of a generation: more is a mistake. Leaves room to count on.
constexpr uint32_t kCounterMax = uint32_t{1} << 31U;

// A lost node is not ready.
bool can_be_placed(const Node& node) { return node.ready && node.leaving_code == 0; }

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
    if (++missing > kNamedMax) continue;
    if (missing > 1) text += ", ";
    text += "node " + std::to_string(rank) + " (" + why_missing(state, rank) + ")";
  }
  if (missing > kNamedMax) text += " and " + std::to_string(missing - kNamedMax) + " more";
  return text;
}

std::chrono::milliseconds patience(const CoordinatorState& state) {
  const CoordinatorOptions& options = state.options;
  return options.rejoin_timeout + (state.group == GroupState::kNone ? options.dns_ttl : std::chrono::milliseconds{0});
}

// There is no group, and there is to be one.
bool is_waiting(const CoordinatorState& state) {
  return (state.group == GroupState::kNone || state.group == GroupState::kBroken) && state.stop_code == 0;
}

bool had_no_step(const CoordinatorState& state) {
  const bool lost_each_other =
      state.cause == peer_lost() || state.cause == exit_reason(static_cast<int>(ExitCode::kTimeout));
  return state.group == GroupState::kBroken && lost_each_other && !state.has_stepped;
}

// Before the next group is placed. The first that came to nothing may have lost one whose end is about to be told.
// (Beats come often enough to see the end of a pause.)
bool pauses(const CoordinatorState& state, TimePoint now) {
  if (state.group != GroupState::kBroken || state.groups_without_step < 2) return false;
  const int doublings = std::clamp(state.groups_without_step - 2, 0, 5);
  return now < state.waiting_since + std::min(kWithoutStepPauseInitial * (1 << doublings), kWithoutStepPauseMax);
}

bool could_be_placed(const CoordinatorState& state, TimePoint now) {
  const auto first = state.nodes.find(0);
  const bool has_first = first != state.nodes.end() && can_be_placed(first->second);
  if (!has_first || state.tally.ready < state.options.min_nodes) return false;
  const bool has_wanted = state.tally.ready >= state.options.wanted_nodes;
  const bool has_all_there_were = state.group == GroupState::kBroken && state.tally.awaited == 0;
  const bool has_waited = now >= state.waiting_since + patience(state);
  return has_wanted || has_all_there_were || has_waited;
}

// What a worker does for minutes, perhaps, and for itself: nobody has to be waited for in it.
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

// A node that works will be ready; one that is not there, or hangs, may never be.
TimePoint gives_up_at(const CoordinatorState& state) {
  return std::max(state.waiting_since, state.worked_at) + state.options.rendezvous_timeout;
}

// The rule of decide_membership, without its words: cheap enough for every event.
enum class Verdict { kPlace, kWait, kGiveUp, kGiveUpWithoutStep };
Verdict judge(const CoordinatorState& state, TimePoint now) {
  if (could_be_placed(state, now)) {
    if (pauses(state, now)) return Verdict::kWait;
    const bool is_enough =
        state.groups_without_step > 1 && now >= state.without_step_since + state.options.rendezvous_timeout;
    return is_enough ? Verdict::kGiveUpWithoutStep : Verdict::kPlace;
  }
  return now >= gives_up_at(state) ? Verdict::kGiveUp : Verdict::kWait;
}

// The job ends when no group forms for rendezvous_timeout. Whoever has kept the others waiting for this long, without a
// sign of progress, is killed: another one can still come in time.
std::chrono::milliseconds wait_that_is_enough(const CoordinatorOptions& options) {
  return std::max(options.rendezvous_timeout / 2, options.rendezvous_timeout - kTimeToComeBack);
}

std::optional<TimePoint> next_look(const CoordinatorState& state, TimePoint now) {
  std::optional<TimePoint> next;
  for (const TimePoint at : {state.waiting_since + patience(state), gives_up_at(state)}) {
    if (at > now && (!next || at < *next)) next = at;
  }
  return next;
}

std::vector<int> lowest_ready(const CoordinatorState& state) {
  std::vector<int> ranks;
  for (const auto& [rank, node] : state.nodes) {
    if (static_cast<int>(ranks.size()) == state.options.wanted_nodes) break;
    if (can_be_placed(node)) ranks.push_back(rank);
  }
  return ranks;
}

class Stepper {
 public:
  Stepper(CoordinatorState& state, TimePoint now) : s_(state), now_(now) {}

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

  void operator()(const NodeSaid& said) {
    if (const auto at = s_.rank_of.find(said.connection); at != s_.rank_of.end()) {
      const int rank = at->second;
      Node& node = s_.nodes.at(rank);
      node.last_heard = now_;
      std::visit([&](const auto& message) { hear(rank, node, message); }, said.message);
    } else if (const auto* greet = std::get_if<Greet>(&said.message)) {
      answer(said.connection, *greet);
    } else if (const auto* join = std::get_if<Join>(&said.message)) {
      admit(said.connection, *join);
    } else {
      s_.greetings.erase(said.connection);
      close(said.connection);
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

  // What follows from the event. The words of a wait are only looked for at a Tick: they cost a look at all nodes.
  void settle(bool is_tick) {
    if (s_.group == GroupState::kPlaced) settle_placed();
    if (is_waiting(s_) && (is_tick || judge(s_, now_) != Verdict::kWait)) settle_waiting();
  }

  void set_deadline() {
    s_.deadline = s_.next_beat;
    if (s_.next_silence) look_at(*s_.next_silence);
    if (s_.leaving_since) look_at(*s_.leaving_since + kLeaveGather);
    if (s_.regrouping) look_at(s_.regrouping_until);
    if (const auto next = next_look(s_, now_); next && is_waiting(s_)) look_at(*next);
  }

 private:
  // Notes quote what nodes say of themselves (host, job, last words): none of it may forge a line.
  void note(const std::string& text) { out_.emplace_back(Note{.text = one_line(text)}); }
  void warn(const std::string& text) { out_.emplace_back(Note{.text = one_line(text), .is_warning = true}); }
  void send(const Node& node, CoordinatorMessage message) {
    if (node.connection != 0) out_.emplace_back(Send{node.connection, std::move(message)});
  }
  void close(ConnectionId connection) { out_.emplace_back(Close{connection}); }
  void look_at(TimePoint at) { s_.deadline = std::min(*s_.deadline, at); }

  // Every change of a node that its tally can see.
  template <typename Change>
  void change(Node& node, const Change& make_change) {
    count(s_.tally, node, -1);
    make_change(node);
    count(s_.tally, node, +1);
  }

  [[nodiscard]] static std::string name(int rank, const Node& node) {
    return "node " + std::to_string(rank) + (node.host.empty() ? "" : " (" + node.host + ")");
  }

  template <typename Tell>
  void for_members(const Tell& tell) {
    for (const int rank : s_.members) {
      if (const auto at = s_.nodes.find(rank); at != s_.nodes.end()) tell(at->second);
    }
  }

  // This process did not run (stopped, a paused machine): the others had no chance to be heard in that time.
  void shift_deadlines(std::chrono::steady_clock::duration gap) {
    for (auto& [rank, node] : s_.nodes) node.last_heard += gap;
    for (auto& [connection, greeting] : s_.greetings) greeting.since += gap;
    s_.waiting_since += gap;
    s_.worked_at += gap;
    s_.regrouping_until += gap;
    s_.without_step_since += gap;
    if (s_.leaving_since) *s_.leaving_since += gap;
    s_.ended_at += gap;
    warn("the coordinator did not run for " + seconds_text(std::chrono::duration_cast<std::chrono::milliseconds>(gap)) +
         "; nobody is taken for lost");
  }

  // ---- greeting and joining ----

  void refuse(ConnectionId connection, std::string message, bool retry) {
    out_.emplace_back(Note{.text = one_line("refused: " + message), .is_warning = true, .is_refusal = true});
    out_.emplace_back(Send{connection, Refused{std::move(message), retry}});
    close(connection);
  }

  void answer(ConnectionId connection, const Greet& greet) {
    s_.greetings.erase(connection);
    const std::string who = "the agent of node " + std::to_string(greet.node_rank);
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
    if (greet.node_rank < 0 || greet.node_rank >= s_.options.max_nodes) {
      return refuse(connection,
                    who + " does not fit: node ranks are 0 to " + std::to_string(s_.options.max_nodes - 1) +
                        " here; check --node_rank and --nnodes",
                    false);
    }
    if (s_.greetings.size() >= kGreetingsPerNode * static_cast<size_t>(s_.options.max_nodes)) {
      return refuse(connection, who + " must wait: too many greetings are open", true);
    }
    s_.greetings.emplace(connection, Greeting{greet, now_});
    out_.emplace_back(Send{connection, Welcome{s_.generation()}});
  }

  // A Join on a connection that has greeted; anything else is closed.
  void admit(ConnectionId connection, const Join& join) {
    const auto at = s_.greetings.find(connection);
    if (at == s_.greetings.end()) return close(connection);
    const Greet greet = std::move(at->second.greet);
    s_.greetings.erase(at);
    if (!may_join(connection, greet, join)) return;
    take_place(connection, greet, join);
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

  // Rank and nproc of a node other than `rank`: all have the same nproc, so that any will do.
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

  void take_place(ConnectionId connection, const Greet& greet, const Join& join) {
    const int rank = greet.node_rank;
    Node& node = s_.nodes.try_emplace(rank).first->second;
    if (node.connection != 0) dismiss(node, greet);
    const bool leaves_a_group = s_.group == GroupState::kPlaced && node.member;
    change(node, [&](Node& n) {
      n.connection = connection;
      n.attempt = greet.attempt;
      n.incarnation = greet.incarnation;
      n.host = greet.host;
      n.nproc = join.nproc;
      n.ready = join.ready;
      n.terms.clear();
      n.leaving_code = 0;
      n.done = false;
      n.placed = 0;
      n.last_heard = now_;
      n.workers.clear();
      n.killed.clear();
    });
    s_.rank_of.emplace(connection, rank);
    // An agent can have seen a higher one of this attempt only if this coordinator is the second of its attempt.
    if (attempt_of(join.generation) == s_.options.attempt) {
      s_.counter = std::max(s_.counter, counter_of(join.generation));
    }
    note(name(rank, node) + " has joined, attempt " + std::to_string(node.attempt));
    if (leaves_a_group) break_group(kNodeLost, name(rank, node) + " has lost its connection and joined again");
    if (s_.end) return send(node, *s_.end);
    if (join.ready && !accept_terms(rank, node, join.terms)) return;
    if (s_.stop_code != 0) send(node, StopJob{s_.stop_code});  // it was lost when all were told
    if (join.leaving_code != 0) hear(rank, node, Leave{join.leaving_code});
    if (join.done) hear(rank, node, NodeDone{});
  }

  // The connection that `greet`'s agent takes the place of.
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

  // False: the node was refused. Node 0 itself never is: those that differ from it are.
  bool accept_terms(int rank, Node& node, const std::string& terms) {
    node.terms = terms;
    if (s_.end) return true;
    if (rank != 0) return !refuse_other_terms(rank);
    std::vector<int> others;
    for (const auto& [other, present] : s_.nodes) {
      if (other != 0 && present.connection != 0 && present.terms != terms) others.push_back(other);
    }
    for (const int other : others) refuse_other_terms(other);
    return true;
  }

  // What is not known yet is compared when it is.
  bool refuse_other_terms(int rank) {
    const auto first = s_.nodes.find(0);
    const Node& node = s_.nodes.at(rank);
    if (first == s_.nodes.end() || first->second.connection == 0) return false;
    const std::string who = name(rank, node);
    const std::string why = disagreement(first->second.terms, name(0, first->second), node.terms, who);
    if (why.empty()) return false;
    refuse(node.connection, "the agent of " + who + " does not fit: " + why, false);
    lose(rank, End::kClosed, "it was refused");
    return true;
  }

  // ---- what a node that has joined says ----

  void hear(int rank, Node& node, const Greet&) { break_order(rank, node); }
  void hear(int rank, Node& node, const Join&) { break_order(rank, node); }
  void break_order(int rank, const Node& node) {
    close(node.connection);
    lose(rank, End::kClosed, "it greeted or joined twice on one connection");
  }

  void hear(int rank, Node& node, const NodeReady& said) {
    if (said.generation < node.placed) return;
    if (said.ready && !accept_terms(rank, node, said.terms)) return;
    change(node, [&](Node& n) { n.ready = said.ready; });
    const bool in_group = s_.group == GroupState::kPlaced && node.member && !s_.regrouping;
    if (said.ready && in_group) break_group(peer_lost(), "the workers of " + name(rank, node) + " have left the group");
  }

  void hear(int rank, Node& node, const Broken& said) {
    node.workers.clear();  // one of these beats may be of a process that is no more
    if (said.generation != s_.placed || !node.member) return;
    std::string text = name(rank, node) + ": " + (said.rank < 0 ? "" : "rank " + std::to_string(said.rank) + ": ") +
                       (said.message.empty() ? said.cause : said.message);
    if (s_.group == GroupState::kPlaced) return break_group(said.cause, text);
    if (said.rank >= 0) learn_cause(said.cause, text);
  }

  // Those who lost a peer may be heard before the one who knows why.
  void learn_cause(const std::string& cause, const std::string& text) {
    if (s_.group != GroupState::kBroken || s_.cause != peer_lost()) return;
    s_.cause = cause;
    s_.groups_without_step = 0;  // they lost one that died
    warn("the group of generation " + std::to_string(counter_of(s_.placed)) + " broke because of " + text);
  }

  void hear(int rank, Node& node, const Heartbeat& said) {
    if (said.workers.size() > static_cast<size_t>(node.nproc)) return;
    node.workers = said.workers;
    for (const WorkerBeat& worker : said.workers) note_work(worker);
    if (rank == 0 && s_.group == GroupState::kPlaced) watch_steps(node);
  }

  void note_work(const WorkerBeat& worker) {
    if (!is_long_work(worker)) return;
    constexpr double kSecondsMax = 1e9;  // what a node says may be any number, or none
    const std::chrono::duration<double> unchanged(std::min(std::max(0.0, worker.seconds_unchanged), kSecondsMax));
    s_.worked_at = std::max(s_.worked_at, now_ - std::chrono::duration_cast<TimePoint::duration>(unchanged));
  }

  // Rank 0 is in every group. What it shows before it trains may be of the group before.
  void watch_steps(const Node& node) {
    for (const WorkerBeat& worker : node.workers) {
      if (worker.local_rank != 0 || worker.generation != s_.placed || worker.activity != Activity::kTraining) continue;
      if (!s_.first_step) s_.first_step = worker.step;
      s_.has_stepped = s_.has_stepped || worker.step != *s_.first_step;
    }
  }

  void hear(int /*rank*/, Node& node, const StoreCall& said) {
    const bool is_worker = said.local_rank >= 0 && said.local_rank < node.nproc;
    const bool is_current = s_.group == GroupState::kPlaced && node.member && said.request.generation == s_.placed;
    if (is_worker && is_current) {
      out_.emplace_back(AskStore{node.connection, said.local_rank, said.request});
      return;
    }
    StoreReply reply;
    reply.id = said.request.id;
    if (!is_worker) {
      reply.status = StoreStatus::kInvalid;
      reply.message = "local rank " + std::to_string(said.local_rank) + " asks the store; the node's are 0 to " +
                      std::to_string(node.nproc - 1);
    } else {
      reply.status = StoreStatus::kStale;
      reply.message = "generation " + generation_text(said.request.generation) + " has no store: " +
                      (s_.group == GroupState::kPlaced ? "the group is of generation " + generation_text(s_.placed)
                                                       : std::string("there is no group"));
    }
    send(node, StoreAnswerTo{said.local_rank, std::move(reply)});
  }

  void hear(int rank, Node& node, const Leave& said) {
    if (node.leaving_code != 0 || s_.end) return;
    const int interrupted = static_cast<int>(ExitCode::kInterrupted);
    const int code = said.code == interrupted ? interrupted : static_cast<int>(ExitCode::kTerminated);
    change(node, [&](Node& n) { n.leaving_code = code; });
    note(name(rank, node) + " leaves");
    const bool placed = s_.group == GroupState::kPlaced;
    if (placed && s_.stop_code == 0 && s_.tally.staying_members == 0) return stop_job(code);
    // Node 0 among them: another one may be the first to join, and leave, before it, or while it is lost for a moment.
    const auto first = s_.nodes.find(0);
    const bool first_leaves = first != s_.nodes.end() && first->second.leaving_code != 0;
    if (!placed && s_.tally.staying == 0 && first_leaves) s_.stop_code = code;
    // Its workers are in no group: nobody has to agree on a step.
    if (s_.stop_code != 0 || !placed || !node.member || node.ready) return send(node, StopJob{code});
    if (s_.regrouping) return send(node, Regroup{s_.placed, true});
    if (!s_.leaving_since) s_.leaving_since = now_;
  }

  void hear(int /*rank*/, Node& node, const NodeDone&) {
    node.done = true;
    if (!s_.end) end_job(EndJob{0, ""});
  }

  void hear(int rank, Node& node, const NodeFailed& said) {
    if (s_.end) return;
    if (said.for_good) {
      return end_job(
          EndJob{said.code, s_.options.max_nodes > 1 ? name(rank, node) + ": " + said.message : said.message});
    }
    close(node.connection);
    lose(rank, End::kClosed, "it gave up (" + exit_reason(said.code) + "): " + said.message);
  }

  // For the page of node 0's agent, which hears it, too (agent/coordinator_server).
  void hear(int /*rank*/, Node& /*node*/, const LadderDecision& /*said*/) {}

  void hear(int /*rank*/, Node& node, const CheckpointNews& said) {
    if (said.step <= s_.checkpoint_step) return;
    s_.checkpoint_step = said.step;
    for (const auto& [rank, other] : s_.nodes) {
      if (other.connection != node.connection) send(other, said);
    }
  }

  // ---- losing a node ----

  enum class End { kClosed, kSilent };

  // Its connection is ended or about to be. A node that was on its way out is forgotten quietly; but one that fell
  // silent on the way may have left its peers in a collective.
  void lose(int rank, End end, const std::string& why) {
    const auto at = s_.nodes.find(rank);
    Node& node = at->second;
    const std::string text = name(rank, node) + " is lost: " + why;
    s_.rank_of.erase(node.connection);
    const bool in_group = s_.group == GroupState::kPlaced && node.member;
    const bool is_leaving = node.leaving_code != 0;
    const bool leaves_as_told = is_leaving && end == End::kClosed && (s_.regrouping || s_.stop_code != 0);
    change(node, [](Node& n) {
      n.connection = 0;
      n.ready = false;
      n.workers.clear();
    });
    if (!is_leaving && !s_.end) {
      warn(text);
      if (node.member) learn_cause(kNodeLost, text);
    }
    if (in_group && !leaves_as_told) break_group(kNodeLost, text);
    // It left at the same step as the others, who must have left by now too, or it never was in the group.
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

  void break_group(const std::string& cause, const std::string& message) {
    s_.broke_because = message;
    end_group(cause);
    warn("the group of generation " + std::to_string(counter_of(s_.placed)) + " is broken (" + cause + "): " + message);
    for_members([&](const Node& member) {
      send(member, CutGroup{s_.placed, cause, message});
      // It can no longer leave with the others.
      if (member.leaving_code != 0 && s_.stop_code == 0) send(member, StopJob{member.leaving_code});
    });
  }

  void end_group(const std::string& cause) {
    s_.group = GroupState::kBroken;
    s_.cause = cause;
    s_.waiting_since = now_;
    s_.regrouping = false;
    s_.leaving_since.reset();
    count_group_without_step();
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

  // All have asked for it: the members' workers agree on the step.
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
    if (s_.regrouping) {
      if (s_.tally.awaited == 0) return end_group(s_.cause);
      if (now_ < s_.regrouping_until) return;
      return break_group(exit_reason(static_cast<int>(ExitCode::kTimeout)), "it has not left together in time");
    }
    if (s_.leaving_since) {
      if (now_ >= *s_.leaving_since + kLeaveGather) regroup(kNodeLeaves, "a node leaves");
      return;
    }
    // Members are not ready while they are in the group: who is, can come in.
    const bool can_grow = static_cast<int>(s_.members.size()) < s_.options.wanted_nodes && s_.tally.ready > 0;
    if (can_grow) regroup(kNodeJoins, std::to_string(s_.tally.ready) + " more can join");
  }

  void settle_waiting() {
    const MembershipDecision decision = decide_membership(s_, now_);
    if (decision.gives_up) return end_job(EndJob{static_cast<int>(ExitCode::kPeerLost), decision.reason});
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
    s_.first_step.reset();
    s_.has_stepped = false;
    s_.stragglers.forget();
    const int nnodes = static_cast<int>(s_.members.size());
    note("generation " + std::to_string(counter_of(s_.placed)) + ": " + decision.reason);
    out_.emplace_back(BeginGeneration{s_.placed});
    for (int index = 0; index < nnodes; ++index) {
      Node& node = s_.nodes.at(s_.members[static_cast<size_t>(index)]);
      change(node, [&](Node& n) {
        n.ready = false;
        n.member = true;
        n.placed = s_.placed;
        n.killed.clear();
      });
      send(node, Placement{.generation = s_.placed,
                           .first_rank = index * node.nproc,
                           .world_size = nnodes * node.nproc,
                           .node_index = index,
                           .nnodes = nnodes,
                           .wanted_nodes = s_.options.wanted_nodes,
                           .cause = s_.cause});
    }
  }

  // ---- once in kBeatInterval ----

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
      // A worker that hangs in its own work hears no cut, and all wait for it. (One that sits in a collective has been
      // cut; its agent sees to it.)
      for (const auto& [rank, node] : s_.nodes) collect_beats(beats, rank, node, rank);
    }
    const std::chrono::milliseconds enough = wait_that_is_enough(s_.options);
    const bool have_waited = is_waiting(s_) && now_ - s_.waiting_since >= enough;
    const auto timeout = have_waited ? std::min(s_.options.stall_timeout, enough) : s_.options.stall_timeout;
    const std::vector<Stall> stalls = find_stalls(beats, timeout);
    const bool is_stuck = s_.group == GroupState::kPlaced && !stalls.empty() && stalls.front().group_is_stuck;
    // Once for each step: what is stuck there every time is not freed by leaving.
    if (is_stuck && stalls.front().step > s_.stuck_step) return leave_stuck_group(stalls.front());
    for (const Stall& stall : stalls) kill_hanging(stall);
  }

  void leave_stuck_group(const Stall& stall) {
    s_.stuck_step = stall.step;
    break_group(exit_reason(static_cast<int>(ExitCode::kTimeout)),
                stall.message + ", as do all others; they leave the group and go on");
  }

  // Of workers that are in the group; without one, in any group that they have not left.
  void collect_beats(std::vector<RankBeat>& beats, int rank, const Node& node, int index) const {
    const bool is_placed = s_.group == GroupState::kPlaced;
    for (const WorkerBeat& worker : node.workers) {
      const bool is_in_group =
          is_placed ? worker.generation == s_.placed : worker.generation != 0 && !waits_for_a_peer(worker);
      const bool is_here = worker.local_rank >= 0 && worker.local_rank < node.nproc;
      if (is_in_group && is_here) beats.push_back({index * node.nproc + worker.local_rank, rank, worker});
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
  Stepper stepper(state, now);
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
                        who_is_missing(state) + kWhatToDo;
      break;
    case Verdict::kGiveUpWithoutStep:
      decision.gives_up = true;
      decision.reason = std::to_string(state.groups_without_step) + " groups in a row came to nothing within " +
                        seconds_text(state.options.rendezvous_timeout) + "; the last one: " + state.broke_because +
                        kWhatToDoWithoutStep;
      break;
    case Verdict::kWait:
      decision.look_again = next_look(state, now);
      decision.reason = could_be_placed(state, now) ? "waiting a while: " + std::to_string(state.groups_without_step) +
                                                          " groups in a row came to nothing"
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
  // Without a group it is not known who else there is.
  const bool some_must_hear =
      is_complete && (others.awaited > 0 || (state.placed == 0 && state.options.wanted_nodes > 1));
  if (others.connected == 0 && !some_must_hear) return true;
  std::chrono::milliseconds patience = state.options.heartbeat_timeout;
  if (is_complete) patience = state.options.rejoin_timeout;
  if (is_complete && state.placed == 0) patience += state.options.dns_ttl;
  return now >= state.ended_at + patience;
}

}  // namespace lockstep
