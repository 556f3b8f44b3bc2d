#include "operator/train/pod_event_delay.h"

#include <algorithm>
#include <utility>

#include "operator/train/pod_view.h"
#include "operator/train/trim.h"

namespace lockstep::train {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kLongestWait{5'000};

}  // namespace

PodEventDelay::PodSummary PodEventDelay::summary_of(const Json& pod) {
  PodSummary summary;
  summary.job = job_of(pod);
  const std::optional<PodView> view = view_of_pod(pod);
  if (!view) return summary;
  summary.ready = view->ready;
  summary.deleting = view->deleting;
  summary.done = view->phase == PodPhase::kSucceeded || (view->end && view->end->exit_code == 0);
  summary.failed =
      view->phase == PodPhase::kFailed || (view->end && view->end->exit_code != 0) || !view->disruption.empty();
  if (view->node_rank == 0) {
    const char* const state = summary.done                ? "done "
                              : summary.failed            ? "failed "
                              : is_trainer_running(*view) ? "running "
                                                          : "";
    summary.place = state + view->ip;
  }
  summary.num_nodes = view->num_nodes;
  return summary;
}

void PodEventDelay::count(const PodSummary& summary, int sign) {
  Counts& counts = jobs_[summary.job];
  if (summary.ready) counts.ready += sign;
  if (summary.done) counts.done += sign;
  if (summary.deleting) counts.deleting += sign;
  if (counts.ready == 0 && counts.done == 0 && counts.deleting == 0) jobs_.erase(summary.job);
}

PodEventDelay::Turn PodEventDelay::turn_after(const Json& pod, bool is_gone) {
  const api::ObjectKey key = api::key_of(pod);
  const auto known = pods_.find(key);
  const PodSummary before = known == pods_.end() ? PodSummary{} : known->second;
  PodSummary now = summary_of(pod);
  if (known != pods_.end()) count(before, -1);
  if (is_gone) {
    pods_.erase(key);
  } else {
    count(now, 1);
    pods_.insert_or_assign(key, now);
  }
  if (is_gone && !now.place.empty()) now.place = "gone";
  const auto found = jobs_.find(now.job);
  const Counts counts = found == jobs_.end() ? Counts{} : found->second;
  const bool was_already_deleting = before.deleting && (is_gone || now.deleting);
  const bool is_end = is_gone || now.deleting != before.deleting || now.failed != before.failed;
  const bool is_last_ready = now.ready && !before.ready && counts.ready >= now.num_nodes;
  const bool is_last_done = now.done && !before.done && counts.done >= now.num_nodes;
  const bool is_last_gone = is_gone && counts.deleting == 0;
  // The first sign of a lost node may be that a pod is no longer ready.
  const bool is_readiness_lost = before.ready && !now.ready && !now.done && !now.deleting;
  if ((is_end && !was_already_deleting) || is_readiness_lost || is_last_done || is_last_gone) {
    return {.wait = milliseconds::zero(), .goes_first = true};
  }
  if (is_last_ready || now.place != before.place) return {.wait = milliseconds::zero()};
  // Soon, because the pod may be deleted at any time: unless its end is in the status by then, it would count as lost.
  const bool is_end_with_0 = now.done && !before.done;
  const milliseconds shortest(is_end_with_0 ? 100 : 1000);
  const std::chrono::microseconds per_pod(is_end_with_0 ? 100 : 500);
  return {.wait = std::clamp(duration_cast<milliseconds>(now.num_nodes * per_pod), shortest, kLongestWait)};
}

}  // namespace lockstep::train
