#include "operator/train/pod_event_delay.h"

#include <algorithm>
#include <string>

namespace lockstep::train {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kLongestWait{5'000};

bool is_done(const PodView& pod) { return pod.phase == PodPhase::kSucceeded || (pod.end && pod.end->exit_code == 0); }

// It, or its trainer, has ended badly; or Kubernetes says that it is about to end it.
bool has_failed(const PodView& pod) {
  return pod.phase == PodPhase::kFailed || (pod.end && pod.end->exit_code != 0) || !pod.disruption.empty();
}

// What the job's other pods must know of pod 0: whether it runs or has ended, and its address.
std::string pod0_state(const PodView& pod) {
  if (pod.node_rank != 0) return {};
  const char* const state = is_done(pod)              ? "done "
                            : has_failed(pod)         ? "failed "
                            : is_trainer_running(pod) ? "running "
                                                      : "";
  return state + pod.ip;
}

}  // namespace

void PodEventDelay::count(const PodView* pod, int sign) {
  if (pod == nullptr || pod->node_rank < 0) return;
  Counts& counts = jobs_[pod->job];
  if (pod->ready) counts.ready += sign;
  if (is_done(*pod)) counts.done += sign;
  if (pod->deleting) counts.deleting += sign;
  if (counts == Counts{}) jobs_.erase(pod->job);
}

PodEventDelay::Turn PodEventDelay::turn_after(const PodView* before_event, const PodView* after_event) {
  count(before_event, -1);
  count(after_event, 1);
  const bool is_gone = after_event == nullptr;
  const auto kept = jobs_.find((is_gone ? before_event : after_event)->job);
  const Counts counts = kept == jobs_.end() ? Counts{} : kept->second;

  const PodView nothing{.node_rank = -1};
  const PodView& before = before_event == nullptr ? nothing : *before_event;
  const PodView& now = is_gone ? before : *after_event;
  const bool was_already_deleting = before.deleting && (is_gone || now.deleting);
  const bool is_end = is_gone || now.deleting != before.deleting || has_failed(now) != has_failed(before);
  const bool is_last_ready = now.ready && !before.ready && counts.ready >= now.num_nodes;
  const bool is_end_with_0 = is_done(now) && !is_done(before);
  const bool is_last_done = is_end_with_0 && counts.done >= now.num_nodes;
  const bool is_last_gone = is_gone && counts.deleting == 0;
  // The first sign of a lost node may be that a pod is no longer ready.
  const bool is_readiness_lost = before.ready && !now.ready && !is_done(now) && !now.deleting;
  if ((is_end && !was_already_deleting) || is_readiness_lost || is_last_done || is_last_gone) {
    return {.wait = milliseconds::zero(), .goes_first = true};
  }
  const bool has_pod0_changed = now.node_rank == 0 && (is_gone || pod0_state(now) != pod0_state(before));
  if (is_last_ready || has_pod0_changed) return {.wait = milliseconds::zero()};
  // Soon, because the pod may be deleted at any time: unless its end is in the status by then, it would count as lost.
  const milliseconds shortest(is_end_with_0 ? 100 : 1000);
  const std::chrono::microseconds per_pod(is_end_with_0 ? 100 : 500);
  return {.wait = std::clamp(duration_cast<milliseconds>(now.num_nodes * per_pod), shortest, kLongestWait)};
}

}  // namespace lockstep::train
