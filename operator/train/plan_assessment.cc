#include "operator/train/plan_assessment.h"

#include <utility>

#include "operator/train/object_names.h"
#include "operator/train/plan_gang.h"
#include "operator/train/pod_group.h"
#include "operator/train/status.h"
#include "operator/train/stuck_pod.h"

namespace lockstep::train {
namespace {

// Older reports are not used.
constexpr api::UnixSeconds kReportFreshSeconds = 60;

// The attempts of pods may be higher than those in the status: the status was lost (a backup without it was restored),
// or it was read before the newest write, in which case this pass's write will be refused.
void catch_up_with_pods(PlanState& state) {
  for (const PodView& pod : state.observed.pods) {
    if (pod.attempt <= state.attempt_of(pod.node_rank)) continue;
    state.status.attempts[pod.node_rank] = pod.attempt;
    state.book.created.erase(pod.node_rank);
  }
  for (const PodView& pod : state.observed.pods) {
    if (pod.pod_group.empty() || pod.attempt < state.attempt_of(pod.node_rank)) continue;
    const std::optional<int> group = pod_group_number(state.observed.job.meta, pod.pod_group);
    if (group && *group > state.book.pod_group) state.book.pod_group = *group;
  }
}

// A job whose pods are refused may be edited while it has none (manifests/base/crd.yaml).
void note_edit(PlanState& state) {
  const api::TrainJobStatus& before = state.observed.job.status;
  const int64_t generation = state.observed.job.meta.generation;
  if (before.phase == api::JobPhase::kPending && before.reason == kInvalidSpec &&
      before.observed_generation != generation) {
    state.book.pods_from_generation = generation;
  }
}

// Pods of an earlier spec, see Bookkeeping::pods_from_generation: their successors are made, and nothing is counted.
void retire_pods_of_earlier_specs(PlanState& state) {
  bool has_any = false;
  for (const PodView& pod : state.observed.pods) {
    if (pod.generation == 0 || pod.generation >= state.book.pods_from_generation) continue;
    if (pod.attempt < state.attempt_of(pod.node_rank)) continue;
    state.raise_attempt(pod.node_rank);
    has_any = true;
  }
  if (has_any) next_pod_group(state);
}

void assess_pod(PlanState& state, int node_rank) {
  const int attempt = state.attempt_of(node_rank);
  const PodView* const pod = state.observed.pod(node_rank, attempt);
  const bool is_done = state.book.done.count(node_rank) > 0;
  if (pod == nullptr) {
    if (is_done || state.book.created.count(node_rank) == 0) return;
    const std::string name = pod_name(state.observed.job.meta.name, node_rank, attempt);
    if (state.observed.missing_pods.count(name) > 0) {
      state.ends.push_back(end_of_missing_pod(name, node_rank, attempt, state.now));
    } else if (!state.is_blocked("pod " + name)) {
      state.lookups.push_back({name, node_rank, attempt});
    }
    return;
  }
  state.current[static_cast<size_t>(node_rank)] = pod;
  state.book.created.insert(node_rank);
  if (is_done) return;
  std::optional<PodEnd> end = find_end(*pod, state.observed);
  if (!end) return;
  if (end->kind != EndKind::kDone) {
    state.failed[static_cast<size_t>(node_rank)] = true;
    state.ends.push_back(std::move(*end));
    return;
  }
  state.book.done.insert(node_rank);
  if (state.book.first_done_at == 0) state.book.first_done_at = state.now;
}

void find_stuck_pods(PlanState& state) {
  const int num_others = static_cast<int>(state.current.size()) - 1;
  int num_started = static_cast<int>(state.book.done.size());
  for (const PodView* const pod : state.current) {
    if (pod == nullptr || !pod->started) continue;
    state.book.moved.erase(pod->node_rank);
    if (state.book.done.count(pod->node_rank) == 0) ++num_started;
  }
  if (2 * num_started <= num_others) return;
  for (const PodView* const pod : state.current) {
    if (pod == nullptr || pod->started || state.failed[static_cast<size_t>(pod->node_rank)]) continue;
    if (state.book.moved.count(pod->node_rank) > 0 || state.book.done.count(pod->node_rank) > 0) continue;
    const std::optional<api::UnixSeconds> stuck_at = when_stuck(*pod, state.observed);
    if (!stuck_at || !may_move(*pod, state.current, state.observed)) continue;
    if (*stuck_at > state.now) {
      state.requeue(*stuck_at);
      continue;
    }
    state.failed[static_cast<size_t>(pod->node_rank)] = true;
    state.ends.push_back(end_of_stuck_pod(*pod, num_started, num_others, state.observed));
  }
}

void copy_figures(PlanState& state, const RunReport& report) {
  if (!report.origin.empty() && report.origin != state.book.origin) {
    state.book.origin = report.origin;
    state.event(false, "StateLoaded", "The run's state: " + state.book.origin + ".", "Train");
  }
  if (report.progress && report.progress->step > 0) note_commit(state.spec, state.book);
  copy_progress(report, state.status);
  count_process_failures(report, state.current, state.status);
  if (report.checkpoint_step) clear_counts_at(*report.checkpoint_step, state.book);
  if (state.book.process_restarts_pod != report.pod_uid) {
    state.book.process_restarts_before += state.book.process_restarts_now;
    state.book.process_restarts_now = 0;
    state.book.process_restarts_pod = report.pod_uid;
  }
  // The report may come from a termination message without a count of restarts: then it is 0.
  if (const int64_t more = report.process_restarts - state.book.process_restarts_now; more > 0) {
    state.book.process_restarts_now = report.process_restarts;
    state.recovered = worker_restarted_text(state.status, state.current, more);
    state.event(true, "WorkerRestarted", state.recovered, "RestartWorker");
  }
  state.status.restarts.process = state.book.process_restarts_before + state.book.process_restarts_now;
}

}  // namespace

void assess_pods(PlanState& state) {
  note_edit(state);
  catch_up_with_pods(state);
  retire_pods_of_earlier_specs(state);
  const int num_nodes = state.spec.trainer.num_nodes;
  state.current.assign(static_cast<size_t>(num_nodes), nullptr);
  state.failed.assign(static_cast<size_t>(num_nodes), false);
  for (int node_rank = 0; node_rank < num_nodes; ++node_rank) assess_pod(state, node_rank);
  find_stuck_pods(state);
  for (const PodView& pod : state.observed.pods) {
    if (has_ended(pod) || is_lost(pod, state.observed)) continue;
    state.node_ranks_with_pods.insert(pod.node_rank);
    ++state.pods_left;
    if (!pod.pod_group.empty()) ++state.living_by_group[pod.pod_group];
    if (const auto when = overdue_at(pod)) state.requeue(*when);
    if (const auto when = when_believed_lost(pod, state.observed)) state.requeue(*when);
  }
}

void read_report(PlanState& state) {
  const PodView* const pod0 = state.pod0();
  if (pod0 == nullptr) return;
  if (state.observed.report && state.observed.report->pod_uid == pod0->meta.uid) {
    copy_figures(state, *state.observed.report);
    const bool is_alive = state.ends.empty() || state.ends.front().node_rank != 0;
    const api::UnixSeconds stale_at = state.observed.report->read_at + kReportFreshSeconds;
    if (is_alive && stale_at > state.now) {
      state.report = &*state.observed.report;
      state.requeue(stale_at);  // no event comes when pod 0 stops reporting
    }
  }
  if (!pod0->end || pod0->end->container != kTrainerContainer) return;
  Result<RunReport> final_report = parse_run_report(pod0->end->message, agents_max(state.observed));
  if (!final_report.ok()) return;
  final_report->pod_uid = pod0->meta.uid;
  final_report->read_at = pod0->end->time;
  copy_figures(state, *final_report);
  state.made_no_step = !final_report->progress && !final_report->origin.empty();
}

}  // namespace lockstep::train
