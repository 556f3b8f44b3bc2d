// An agent: its two machines, joined as runner/agent/agent.cc joins them, and what they order.
#include <algorithm>

#include "tests/runner/recovery/simulated_job.h"

namespace lockstep::simulation {

// ---- the node ----

void Simulation::handle(int process, NodeEvent event) {
  Process& p = proc(process);
  p.inbox.push_back(std::move(event));
  if (p.is_draining) return;
  p.is_draining = true;
  while (!p.inbox.empty() && p.alive && !p.finish_code) {
    const NodeEvent next = std::move(p.inbox.front());
    p.inbox.pop_front();
    for (const NodeOutput& output : step(p.node, next, local_time(p))) {
      if (p.alive) perform(process, output);
    }
    const bool is_tick = std::holds_alternative<NodeTick>(next);
    if (is_tick && p.node.deadline && *p.node.deadline <= local_time(p)) fail(name(process), " spins");
    if (p.node.job_ended) p.told_at = std::min(p.told_at, now_);
  }
  p.is_draining = false;
  if (!p.alive) return;
  set_timer(process, p.node_timer, p.node.deadline, What::kNodeTimer);
  leave_if_told(process);
}

void Simulation::notify(int process, NodeEvent event) {
  Process& p = proc(process);
  if (p.paused_until <= now_ && p.held.empty()) return handle(process, std::move(event));
  if (p.held.empty()) push(p.paused_until, What::kInbox, process);
  p.held.push_back(std::move(event));
}

void Simulation::run_again(int process) {
  for (NodeEvent& event : std::exchange(proc(process).held, {})) handle(process, std::move(event));
}

void Simulation::notify_step(int process, int local) {
  const Worker& w = worker(process, local);
  const bool in_collective = w.group != 0 && (!w.hangs || w.hangs_in_collective);
  if (w.state.exists || in_collective) notify(process, WorkerAtStep{local, w.state.step, in_collective});
}

void Simulation::set_timer(int process, Micros& timer, const std::optional<TimePoint>& deadline, What what) {
  if (!deadline) return;
  const Micros at = std::max(now_ + 1, global_time(proc(process), *deadline));
  if (at >= timer) return;
  timer = at;
  push(at, what, process);
}

void Simulation::ring(int process, What what) {
  Process& p = proc(process);
  const auto is_due = [&](const std::optional<TimePoint>& deadline) { return deadline && local_time(p) >= *deadline; };
  if (what == What::kNodeTimer) {
    p.node_timer = kNever;
    if (is_due(p.node.deadline)) return handle(process, NodeTick{});
    set_timer(process, p.node_timer, p.node.deadline, what);
  } else {
    p.coordinator_timer = kNever;
    if (is_due(p.coordinator->deadline)) return step_coordinator(process, CoordinatorTick{});
    set_timer(process, p.coordinator_timer, p.coordinator->deadline, what);
  }
}

void Simulation::perform(int process, const NodeOutput& output) {
  if (const auto* send = std::get_if<SendToCoordinator>(&output)) {
    send_to_coordinator(process, send->message);
  } else if (std::holds_alternative<FindCoordinator>(output)) {
    begin_seeking(process);
  } else if (const auto* start = std::get_if<StartWorker>(&output)) {
    start_worker(process, start->local_rank);
  } else if (const auto* assignment = std::get_if<Assignment>(&output)) {
    place_workers(process, *assignment);
  } else if (const auto* cut = std::get_if<CutGroup>(&output)) {
    ++counts_.cuts;
    cut_workers(process, cut->generation);
  } else if (const auto* leave = std::get_if<LeaveTogether>(&output)) {
    for (Worker& w : proc(process).workers) {
      if (w.group != leave->generation) continue;
      w.leaves_together = true;
      w.leaving_code = leave->leaving_code;
    }
  } else if (const auto* signal = std::get_if<SignalWorkers>(&output)) {
    signal_workers(process, signal->signal);
  } else if (const auto* kill = std::get_if<KillProcess>(&output)) {
    const uint32_t count = worker(process, kill->local_rank).process;
    push(now_ + random_.between(1, 30) * kMs, What::kKilled, process, kill->local_rank, count);
  } else if (const auto* decision = std::get_if<RestartDecision>(&output)) {
    decision->gives_up ? ++counts_.nodes_failed : ++counts_.workers_restarted;
    trace(name(process), ": ", decision->line);
  } else if (const auto* remark = std::get_if<Remark>(&output)) {
    if (remark->line.find("was seen before") != std::string::npos) ++counts_.older_coordinators_declined;
    trace(name(process), ": ", remark->line);
  } else if (const auto* finish = std::get_if<Finish>(&output)) {
    trace(name(process), " finishes with ", finish->code, ": ", finish->message);
    Process& p = proc(process);
    const bool is_quiet = p.node.job_ended && p.node.job_ended->code == 0 && p.node.seeking_since;
    if (is_quiet) ++counts_.quiet_ends;
    p.finish_code = finish->code;
  }
}

void Simulation::send_to_coordinator(int process, const NodeMessage& message) {
  const Process& p = proc(process);
  const auto* broken = std::get_if<Broken>(&message);
  if (broken != nullptr && broken->cause == kNotReady) ++counts_.stale_placements;
  if (p.connection >= 0 && conn(p.connection).agent_open) send_up(p.connection, message);
}

// Node 0's agent stays until everybody has heard the end.
void Simulation::leave_if_told(int process) {
  Process& p = proc(process);
  if (!p.alive || !p.finish_code) return;
  const bool must_stay = p.coordinator && p.coordinator->end && !may_leave(*p.coordinator, local_time(p));
  if (!must_stay) end_process(process, *p.finish_code, false);
}

void Simulation::beat(int process) {
  Process& p = proc(process);
  if (p.finish_code) return;
  push(now_ + kSecond, What::kAgentBeat, process);
  for (int local = 0; local < nproc_; ++local) notify_step(process, local);
  if (!p.alive || !p.node.joined || p.connection < 0) return;
  Heartbeat heartbeat;
  heartbeat.workers.reserve(p.workers.size());
  for (int local = 0; local < nproc_; ++local) {
    const Worker& w = worker(process, local);
    if (!w.alive || !w.said_hello) continue;
    WorkerBeat beat;
    beat.local_rank = local;
    beat.step = w.state.step;
    beat.activity = w.group == 0 ? Activity::kAwaiting : Activity::kTraining;
    beat.phase = w.hangs && !w.hangs_in_collective ? Phase::kForward : Phase::kGradSync;
    beat.seconds_unchanged = static_cast<double>(now_ - w.progress_at) / kSecond;
    beat.generation = w.group;
    heartbeat.workers.push_back(beat);
  }
  send_up(p.connection, std::move(heartbeat));
}

// ---- the coordinator ----

void Simulation::step_coordinator(int process, const CoordinatorEvent& event) {
  Process& p = proc(process);
  std::vector<CoordinatorOutput> outputs = step(*p.coordinator, event, local_time(p));
  for (CoordinatorOutput& output : outputs) {
    if (auto* send = std::get_if<Send>(&output)) {
      transmit(process, std::move(*send));
    } else if (const auto* close = std::get_if<Close>(&output)) {
      close_by_coordinator(static_cast<int>(close->connection) - 1);
    } else if (const auto* begin = std::get_if<BeginGeneration>(&output)) {
      check_generation_begins(process, begin->generation);
    } else if (const auto* note = std::get_if<Note>(&output)) {
      trace("coordinator ", p.attempt, ": ", note->text);
    }
  }
  check_coordinator(p);
  check_waiting(p);
  const bool is_tick = std::holds_alternative<CoordinatorTick>(event);
  if (is_tick && *p.coordinator->deadline <= local_time(p)) fail("coordinator ", p.attempt, " spins");
  set_timer(process, p.coordinator_timer, p.coordinator->deadline, What::kCoordinatorTimer);
  leave_if_told(process);
}

void Simulation::transmit(int process, Send send) {
  const int connection = static_cast<int>(send.connection) - 1;
  const CoordinatorMessage& message = send.message;
  if (const auto* placement = std::get_if<Assignment>(&message)) check_placement_sent(process, connection, *placement);
  if (const auto* end = std::get_if<EndJob>(&message); end != nullptr && end->code != 0 && end->code != 10) {
    fail("the job ends with ", end->code, " because of one node: ", end->message);
  }
  if (std::holds_alternative<Regroup>(message)) ++counts_.regroups;
  if (std::holds_alternative<StopJob>(message)) ++counts_.stops;
  if (const auto* refused = std::get_if<Refused>(&message)) {
    ++counts_.refusals;
    if (refused->message.find("superseded") != std::string::npos) ++counts_.superseded;
  }
  const bool is_turn = std::holds_alternative<Assignment>(message) || std::holds_alternative<CutGroup>(message) ||
                       std::holds_alternative<Regroup>(message) || std::holds_alternative<StopJob>(message) ||
                       std::holds_alternative<EndJob>(message);
  if (is_turn) ambush();
  if (conn(connection).coordinator_open) send_down(connection, std::move(send.message));
}

}  // namespace lockstep::simulation
