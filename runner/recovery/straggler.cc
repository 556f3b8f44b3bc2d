#include "runner/recovery/straggler.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// What a rank does, in the words of a Stall's message.
constexpr const char* kInCollective = "in a collective";
constexpr const char* kOnDisk = "waiting for the disk";
constexpr const char* kEvaluating = "evaluating";
constexpr const char* kStartingUp = "starting up";

const char* words_for(Phase phase) {
  switch (phase) {
    case Phase::kStartup:
      return kStartingUp;
    case Phase::kDataWait:
      return "waiting for data";
    case Phase::kDevice:
      return "waiting for its device";
    case Phase::kValidation:
      return kEvaluating;
    case Phase::kCheckpointStall:
      return kOnDisk;
    case Phase::kGradSync:
    case Phase::kWaiting:
      return kInCollective;
    case Phase::kForward:
    case Phase::kBackward:
    case Phase::kOptimizer:
    case Phase::kOther:
      break;
  }
  return "computing";
}

const char* words_for(const WorkerBeat& beat) {
  if (waits_for_a_peer(beat)) return kInCollective;
  switch (beat.activity) {
    case Activity::kLoading:
      return kStartingUp;
    case Activity::kRestoring:
    case Activity::kCheckpointing:
      return kOnDisk;
    case Activity::kEvaluating:
      return kEvaluating;
    case Activity::kAwaiting:
    case Activity::kForming:
    case Activity::kTraining:
    case Activity::kStopping:
      break;
  }
  return words_for(beat.phase);
}

// `others`: ranks that wait in a collective meanwhile.
Stall describe(const RankBeat& rank, size_t others) {
  std::string text = "rank " + std::to_string(rank.rank) + " (node " + std::to_string(rank.node_rank) +
                     ") has shown no progress for " + std::to_string(std::llround(rank.beat.seconds_unchanged)) +
                     " s at step " + std::to_string(rank.beat.step) + ", " + words_for(rank.beat);
  if (others > 0) text += "; " + std::to_string(others) + (others == 1 ? " rank waits" : " ranks wait") + " for it";
  return {.rank = rank.rank,
          .node_rank = rank.node_rank,
          .local_rank = rank.beat.local_rank,
          .step = rank.beat.step,
          .message = std::move(text)};
}

// All ranks wait and none gets out: reports the ones at the lowest step.
std::vector<Stall> stalls_at_lowest_step(const std::vector<const RankBeat*>& ranks) {
  const auto* const lowest = *std::min_element(
      ranks.begin(), ranks.end(), [](const auto* a, const auto* b) { return a->beat.step < b->beat.step; });
  std::vector<Stall> stalls;
  for (const RankBeat* rank : ranks) {
    if (rank->beat.step != lowest->beat.step) continue;
    stalls.push_back(describe(*rank, 0));
    stalls.back().group_is_stuck = true;
  }
  return stalls;
}

}  // namespace

bool waits_for_a_peer(const WorkerBeat& beat) { return waits_for_a_peer(beat.phase, beat.activity); }

std::vector<Stall> find_stalls(const std::vector<RankBeat>& beats, std::chrono::milliseconds timeout) {
  const double seconds = std::chrono::duration<double>(timeout).count();
  std::vector<const RankBeat*> late;
  std::vector<const RankBeat*> waiting;
  bool all_are_stuck_waiting = true;
  for (const RankBeat& rank : beats) {
    if (rank.beat.activity == Activity::kAwaiting) continue;
    const bool is_unchanged = rank.beat.seconds_unchanged >= seconds;
    const bool is_waiting = waits_for_a_peer(rank.beat) || rank.beat.phase == Phase::kDevice;
    if (is_waiting) waiting.push_back(&rank);
    if (is_unchanged && !is_waiting) late.push_back(&rank);
    if (!is_unchanged || !is_waiting) all_are_stuck_waiting = false;
  }
  if (!waiting.empty() && all_are_stuck_waiting) return stalls_at_lowest_step(waiting);
  std::vector<Stall> stalls;
  stalls.reserve(late.size());
  for (const RankBeat* rank : late) stalls.push_back(describe(*rank, waiting.size()));
  return stalls;
}

void StragglerView::forget() {
  window_begin_.clear();
  slowest_.reset();
}

void StragglerView::add(const std::vector<RankBeat>& beats) {
  if (beats.size() < 2) return;
  bool is_full = true;
  for (const RankBeat& rank : beats) {
    WorkerBeat& begin = window_begin_.try_emplace(rank.rank, rank.beat).first->second;
    // The rank has a new process, or a state from a checkpoint, so its window begins again.
    if (rank.beat.busy_seconds < begin.busy_seconds || rank.beat.step < begin.step) begin = rank.beat;
    if (rank.beat.step - begin.step < kStragglerWindowSteps) is_full = false;
  }
  if (!is_full) return;

  std::vector<double> per_step;
  per_step.reserve(beats.size());
  SlowestStatus slowest;
  double most = 0.0;
  for (const RankBeat& rank : beats) {
    WorkerBeat& begin = window_begin_.at(rank.rank);
    const double seconds =
        (rank.beat.busy_seconds - begin.busy_seconds) / static_cast<double>(rank.beat.step - begin.step);
    begin = rank.beat;
    per_step.push_back(seconds);
    if (slowest.rank >= 0 && seconds <= most) continue;
    slowest.rank = rank.rank;
    slowest.node = rank.node_rank;
    most = seconds;
  }
  if (most <= 0) return;  // the ranks of a program that does not say what it waits for
  // The lower median, so that two ranks are compared with the faster one.
  const auto middle = per_step.begin() + static_cast<std::ptrdiff_t>((per_step.size() - 1) / 2);
  std::nth_element(per_step.begin(), middle, per_step.end());
  slowest.lag_seconds = most - *middle;
  slowest_ = slowest;
}

}  // namespace lockstep
