// Connections between agents and coordinators, and how an agent finds one.
#include <algorithm>

#include "tests/runner/recovery/simulated_job.h"

namespace lockstep::simulation {
namespace {

// The opening messages are sent once per connection: a second one violates the protocol and ends the connection.
template <typename... Opening, typename Message>
bool is_one_of(const Message& message) {
  return (std::holds_alternative<Opening>(message) || ...);
}
bool opens(const NodeMessage& message) { return is_one_of<Greet, Join>(message); }
bool opens(const CoordinatorMessage& message) { return is_one_of<Welcome, Refused>(message); }

}  // namespace

Micros Simulation::delay() {
  if (random_.one_in(slow_one_in_)) return random_.between(20, 2'000) * kMs;
  return random_.between(200, 20'000);
}

int Simulation::open_connection(int agent, int coordinator) {
  auto c = std::make_unique<Connection>();
  c->agent = agent;
  c->coordinator = coordinator;
  c->in_process = agent == coordinator;
  connections_.push_back(std::move(c));
  return static_cast<int>(connections_.size()) - 1;
}

template <typename Message>
void Simulation::double_it(int connection, Pipe<Message>& pipe, const std::optional<Message>& message, What again) {
  if (now_ >= conn(connection).doubled_until || !message || opens(*message) || random_.one_in(2)) return;
  pipe.copies.push_back(*message);
  push(now_ + random_.between(0, random_.one_in(4) ? 15'000 : 500) * kMs, again, connection,
       static_cast<int>(pipe.copies.size()) - 1);
}

void Simulation::send_again(int connection, What again, int copy) {
  const Connection& c = conn(connection);
  if (again == What::kUpAgain && c.agent_open) {
    ++counts_.doubled;
    send_up(connection, c.up.copies[static_cast<size_t>(copy)]);
  } else if (again == What::kDownAgain && c.coordinator_open) {
    ++counts_.doubled;
    send_down(connection, c.down.copies[static_cast<size_t>(copy)]);
  }
}

void Simulation::send_up(int connection, std::optional<NodeMessage> message) {
  Connection& c = conn(connection);
  double_it(connection, c.up, message, What::kUpAgain);
  c.up.queue.push_back(std::move(message));
  c.up.due = std::max(c.up.due, now_ + (c.in_process ? 0 : delay()));
  push(c.up.due, What::kUp, connection);
}

void Simulation::send_down(int connection, std::optional<CoordinatorMessage> message) {
  Connection& c = conn(connection);
  double_it(connection, c.down, message, What::kDownAgain);
  c.down.queue.push_back(std::move(message));
  c.down.due = std::max(c.down.due, now_ + (c.in_process ? 0 : delay()));
  push(c.down.due, What::kDown, connection);
}

void Simulation::close_by_agent(int connection) {
  if (connection < 0 || !conn(connection).agent_open) return;
  conn(connection).agent_open = false;
  send_up(connection, std::nullopt);
}

void Simulation::close_by_coordinator(int connection) {
  if (!conn(connection).coordinator_open) return;
  conn(connection).coordinator_open = false;
  send_down(connection, std::nullopt);
}

// The last messages of a process that ends by itself are sent; of one that was killed the others see only the end, if
// that.
void Simulation::close_of_process(int process, bool was_killed, bool is_silent) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = *connections_[i];
    const int connection = static_cast<int>(i);
    if (c.agent == process && c.agent_open) {
      c.agent_open = false;
      if (!was_killed) send_up(connection, std::nullopt);
      if (was_killed && !is_silent) push(now_ + delay(), What::kResetUp, connection);
    }
    if (c.coordinator == process && c.coordinator_open) {
      c.coordinator_open = false;
      if (!was_killed) send_down(connection, std::nullopt);
      if (was_killed && !is_silent) push(now_ + delay(), What::kResetDown, connection);
    }
  }
}

// A side that is not told notices the silence. What the agent has sent may still arrive, late.
void Simulation::break_connection(int connection) {
  Connection& c = conn(connection);
  const bool agent_told = !random_.one_in(3);
  const bool coordinator_told = !random_.one_in(3);
  c.down.lost = true;
  c.up.lost = random_.one_in(2);
  if (!c.up.lost) c.up.due = std::max(c.up.due, now_ + random_.between(0, 4'000) * kMs);
  trace("connection ", connection, " of ", name(c.agent), " breaks", agent_told ? "" : ", unnoticed by the agent",
        coordinator_told ? "" : ", unnoticed by the coordinator");
  if (agent_told) push(now_ + random_.between(0, 300) * kMs, What::kResetDown, connection);
  if (coordinator_told) push(c.up.lost ? now_ + random_.between(0, 300) * kMs : c.up.due, What::kResetUp, connection);
}

// Held back by a partition, or because the receiver is paused. The order within a connection stays the same.
bool Simulation::deliver_later(int connection, int receiver, What what) {
  const Connection& c = conn(connection);
  Micros until = 0;
  if (!reachable(c.agent, c.coordinator)) until = partition_until_;
  if (proc(receiver).alive) until = std::max(until, proc(receiver).paused_until);
  if (until <= now_) return false;
  push(until, what, connection);
  return true;
}

void Simulation::deliver_up(int connection) {
  Connection& c = conn(connection);
  if (deliver_later(connection, c.coordinator, What::kUp)) return;
  const std::optional<NodeMessage> message = std::move(c.up.queue[c.up.head++]);
  if (c.up.lost || !c.coordinator_open || !proc(c.coordinator).alive) return;
  if (!message) return reset_up(connection);
  step_coordinator(c.coordinator, NodeSent{static_cast<ConnectionId>(connection) + 1, *message});
}

void Simulation::reset_up(int connection) {
  Connection& c = conn(connection);
  if (!c.coordinator_open || !proc(c.coordinator).alive) return;
  if (deliver_later(connection, c.coordinator, What::kResetUp)) return;
  c.coordinator_open = false;
  step_coordinator(c.coordinator, ConnectionEnded{static_cast<ConnectionId>(connection) + 1, "reset"});
}

void Simulation::deliver_down(int connection) {
  Connection& c = conn(connection);
  if (deliver_later(connection, c.agent, What::kDown)) return;
  const std::optional<CoordinatorMessage> message = std::move(c.down.queue[c.down.head++]);
  Process& p = proc(c.agent);
  if (c.down.lost || !c.agent_open || !p.alive) return;
  if (!message) return reset_down(connection);
  if (p.connection != connection) return hear_candidate(p, connection, *message);
  if (const auto* refused = std::get_if<Refused>(&*message)) {
    p.connection = -1;
    close_by_agent(connection);
    return handle(c.agent, CoordinatorRefused{*refused});
  }
  if (const auto* kill = std::get_if<KillWorker>(&*message); kill != nullptr && p.node.placed != 0) {
    worker(c.agent, kill->local_rank).hangs ? ++counts_.hangs_killed : ++counts_.others_killed;
  }
  handle(c.agent, CoordinatorSent{*message});
}

void Simulation::hear_candidate(Process& process, int connection, const CoordinatorMessage& message) {
  const auto& candidates = process.candidates;
  if (std::find(candidates.begin(), candidates.end(), connection) == candidates.end()) return;
  Connection& c = conn(connection);
  if (const auto* welcome = std::get_if<Welcome>(&message)) c.welcome = *welcome;
  if (const auto* refused = std::get_if<Refused>(&message)) c.refused = *refused;
}

void Simulation::reset_down(int connection) {
  Connection& c = conn(connection);
  Process& p = proc(c.agent);
  if (!c.agent_open || !p.alive) return;
  if (deliver_later(connection, c.agent, What::kResetDown)) return;
  c.agent_open = false;
  if (p.connection != connection) return;
  p.connection = -1;
  handle(c.agent, CoordinatorLost{"reset"});
}

// ---- finding a coordinator ----

void Simulation::begin_seeking(int process) {
  Process& p = proc(process);
  close_by_agent(p.connection);
  p.connection = -1;
  if (p.seeking) return;
  p.seeking = true;
  ++p.seek_life;
  const Micros after = p.coordinator ? 0 : random_.between(0, 500) * kMs;
  push(now_ + after, What::kSeek, process, 0, p.seek_life);
}

// Greets all addresses that the name resolves to; node 0's agent greets its own coordinator.
void Simulation::seek(int process) {
  Process& p = proc(process);
  for (const int candidate : p.candidates) close_by_agent(candidate);
  p.candidates.clear();
  for (size_t i = 0; i < processes_.size(); ++i) {
    const Process& other = *processes_[i];
    const int coordinator = static_cast<int>(i);
    if (!other.coordinator || !other.alive || !reachable(process, coordinator)) continue;
    const bool is_listed = other.listed_from <= now_ && now_ < other.listed_until;
    if (p.coordinator ? coordinator != process : !is_listed) continue;
    const int connection = open_connection(process, coordinator);
    p.candidates.push_back(connection);
    send_up(connection, Greet{kCoordinationProtocol, "job", "secret", p.rank, p.attempt, p.incarnation, ""});
  }
  const Micros wait = p.coordinator ? kMs : random_.between(100, 800) * kMs;
  push(now_ + wait, What::kSeekDecide, process, 0, p.seek_life);
}

// The highest generation of those that answered.
void Simulation::decide_seeking(int process) {
  Process& p = proc(process);
  int best = -1;
  std::optional<Refused> refused;
  for (const int candidate : p.candidates) {
    const Connection& c = conn(candidate);
    if (c.refused) refused = c.refused;
    if (!c.agent_open || !c.welcome) continue;
    if (best < 0 || c.welcome->generation > conn(best).welcome->generation) best = candidate;
  }
  for (const int candidate : p.candidates) {
    if (candidate != best) close_by_agent(candidate);
  }
  p.candidates.clear();
  if (best < 0) {
    push(now_ + random_.between(200, 1'200) * kMs, What::kSeek, process, 0, p.seek_life);
    if (refused) handle(process, CoordinatorRefused{*refused});
    return;
  }
  p.seeking = false;
  p.connection = best;
  handle(process, CoordinatorFound{*conn(best).welcome});
}

}  // namespace lockstep::simulation
