#include "runner/recovery/restart_policy.h"

#include <algorithm>
#include <numeric>

#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

// The window is kept as this many counts of ends, so that they do not grow with each one.
constexpr int kWindowSlices = 60;

}  // namespace

EndVerdict judge_end(const BadEnd& end) {
  if (end.is_configuration_changed) {
    return {Consequence::kSuspendJob, true, false, "the job is suspended, and goes on when its spec has changed"};
  }
  switch (static_cast<ExitCode>(end.code)) {
    case ExitCode::kNotFinite:
      return {Consequence::kEndJob, true, false, "the same steps would lead to the same numbers again"};
    case ExitCode::kUsage:
    case ExitCode::kData:
      if (end.after_first_commit) return {Consequence::kRestart, true, false, "the same input has worked before"};
      return {Consequence::kEndJob, true, false,
              "before the first step an end with this code is never retried: a new start would end the same way"};
    case ExitCode::kPeerLost:
      return {Consequence::kRestart, false, false, "it lost its peers, which is not its fault"};
    case ExitCode::kInterrupted:
    case ExitCode::kTerminated:
      return {Consequence::kRestart, false, false, "it was told to stop by somebody else"};
    case ExitCode::kDeviceFault:
      return {Consequence::kRestart, true, true, "its device is at fault"};
    default:
      return {};
  }
}

CountedEnd count_end(const EndToCount& end, const RestartLimits& limits, int64_t now_seconds, RestartCounts& counts) {
  CountedEnd result;
  if (end.tells_of_progress) {
    if (end.known_step > counts.furthest_step) {
      counts.furthest_step = end.known_step;
      counts.without_progress.clear();
    }
    result.no_progress = ++counts.without_progress[end.node];
  }
  if (end.is_counted) {
    std::erase_if(counts.counted, [&](const auto& slice) { return slice.first + limits.window_seconds < now_seconds; });
    ++counts.counted[now_seconds - now_seconds % std::max(1, limits.window_seconds / kWindowSlices)];
    if (end.is_out_of_memory) ++counts.out_of_memory;
  }
  result.failures = std::accumulate(counts.counted.begin(), counts.counted.end(), 0,
                                    [](int sum, const auto& slice) { return sum + slice.second; });
  result.is_last_try = result.no_progress > 1 && result.no_progress == limits.no_progress_restarts;
  if (end.is_out_of_memory && counts.out_of_memory >= kOutOfMemoryMax) {
    result.used_up = UsedUp::kOutOfMemory;
  } else if (result.no_progress > limits.no_progress_restarts) {
    result.used_up = UsedUp::kNoProgress;
  } else if (end.is_counted && result.failures > limits.max_restarts) {
    // Not at an end that does not count: max_restarts may have been lowered below the number of earlier failures, and
    // some of these may be older than the window.
    result.used_up = UsedUp::kRestarts;
  }
  return result;
}

void clear_counts_at(int64_t checkpoint_step, RestartCounts& counts) {
  if (checkpoint_step <= counts.checkpoint_step) return;
  counts.checkpoint_step = checkpoint_step;
  counts.counted.clear();
  counts.out_of_memory = 0;
}

}  // namespace lockstep
