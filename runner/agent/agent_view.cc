// What an agent shows: /status, /metrics, the progress line.
#include <algorithm>
#include <utility>

#include "runner/agent/agent.h"
#include "runner/agent/agent_metrics.h"

namespace lockstep {
namespace {

std::string state_of(const Node& node) {
  if (node.done) return "done";
  if (node.connection == 0) return "lost";
  if (node.leaving_code != 0) return "leaving";
  return node.member ? "member" : "waiting";
}

std::string state_of(const WorkerBeat& beat) {
  if (beat.activity == Activity::kLoading) return "starting";
  return beat.activity == Activity::kAwaiting ? "waiting" : "joined";
}

WorkerStatus status_of_remote(const WorkerBeat& beat, int rank, int node_rank) {
  return WorkerStatus{.rank = rank,
                      .node = node_rank,
                      .pid = 0,
                      .state = state_of(beat),
                      .step = beat.step,
                      .activity = beat.activity,
                      .phase = beat.phase,
                      .seconds_unchanged = beat.seconds_unchanged};
}

}  // namespace

bool Agent::is_ending() const {
  return node_.is_asked_to_stop() || std::any_of(local_workers_.begin(), local_workers_.end(),
                                                 [](const WorkerStatus& worker) { return worker.state == "done"; });
}

RunPhase Agent::run_phase() const {
  if (exit_code_) return *exit_code_ == 0 ? RunPhase::kComplete : RunPhase::kFailed;
  if (node_.is_asked_to_stop()) return RunPhase::kStopping;
  const bool is_in_group = node_.placed != 0 || is_ending();
  if (generation_ == 0 && !job_.is_recovering()) return RunPhase::kStarting;
  return is_in_group && !job_.is_recovering() ? RunPhase::kRunning : RunPhase::kRecovering;
}

ProgressView Agent::progress_view() {
  // Before the first step the worker's activity says more than "Running".
  std::string phase = to_string(local_workers_[0].activity);
  if (const auto beats = workers_->beats(0); beats && beats->activity == Activity::kLoading && beats->to_prepare > 0) {
    phase = "preparing the data: " + std::to_string(beats->prepared) + " of " + std::to_string(beats->to_prepare);
  }
  return ProgressView{.workload = options_.workload,
                      .phase = std::move(phase),
                      .progress = status_.progress,
                      .gpus = gpu_use_ ? gpu_use_->newest(now()) : std::vector<GpuUse>()};
}

void Agent::publish() {
  status_.phase = run_phase();
  status_.generation = generation_;
  status_.coordinator = link_->peer();
  status_.restart_level.restarts = node_.restarts_total;
  status_.restart_level.budget_left = options_.node.max_restarts - static_cast<int>(node_.restarts.size());
  fill_workers();
  if (is_first()) fill_job_status();
  AgentFigures figures{
      .status = status_, .workers_alive = workers_->count_alive(), .restarts = restarts_, .gave_up = gave_up_};
  if (is_first()) {
    figures.job = &job_;
    figures.goodput_counters = job_.goodput_counters(now());
  }
  // Metrics are published first, so that whatever a client has seen in /status is in /metrics, too.
  board_.publish_agent_metrics(agent_metrics(figures));
  board_.publish(status_);
}

// This node's workers; on node 0 also those of the other nodes, from their heartbeats. In the order of ranks, node 0's
// first.
void Agent::fill_workers() {
  status_.workers = local_workers_;
  if (!server_) return;
  const CoordinatorState& state = server_->state();
  for (size_t index = 0; index < state.members.size(); ++index) {
    const auto node = state.nodes.find(state.members[index]);
    if (node == state.nodes.end() || node->first == options_.node_rank) continue;
    for (const WorkerBeat& beat : node->second.workers) {
      const int rank = static_cast<int>(index) * node->second.nproc + beat.local_rank;
      status_.workers.push_back(status_of_remote(beat, rank, node->first));
    }
  }
}

// How much of its data this node has loaded, and how long ago any worker of any node made progress in loading. nullopt
// once a group has formed, or when no worker is loading.
std::optional<LoadingStatus> Agent::loading() const {
  if (generation_ != 0) return std::nullopt;
  std::optional<LoadingStatus> loading;
  const auto consider = [&](Activity activity, double seconds_unchanged) {
    if (activity != Activity::kLoading) return;
    if (!loading) loading = LoadingStatus{.seconds_unchanged = seconds_unchanged};
    loading->seconds_unchanged = std::min(loading->seconds_unchanged, seconds_unchanged);
  };
  for (const WorkerStatus& worker : local_workers_) consider(worker.activity, worker.seconds_unchanged);
  for (const auto& [rank, node] : server_->state().nodes) {
    if (rank == options_.node_rank) continue;
    for (const WorkerBeat& beat : node.workers) consider(beat.activity, beat.seconds_unchanged);
  }
  if (const auto beats = workers_->beats(0); loading && beats) {
    loading->prepared = beats->prepared;
    loading->to_prepare = beats->to_prepare;
  }
  return loading;
}

void Agent::fill_job_status() {
  const CoordinatorState& state = server_->state();
  status_.loading = loading();
  status_.reason = server_->last_note();
  status_.wanted_nodes = state.options.wanted_nodes;
  status_.nodes.clear();
  for (const auto& [rank, node] : state.nodes) {
    status_.nodes.push_back(NodeStatus{
        .node = rank, .host = node.host, .attempt = node.attempt, .state = state_of(node), .ready = node.ready});
  }
  status_.slowest = state.stragglers.slowest();
  status_.recoveries = job_.recent();
  status_.recoveries_total = job_.recoveries_total();
  status_.redone_steps = job_.redone_steps();
  status_.goodput = job_.goodput(now());
}

}  // namespace lockstep
