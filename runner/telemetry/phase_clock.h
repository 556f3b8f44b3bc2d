// PhaseClock: where the wall clock of a worker goes.
//
// Role: exactly one phase is running at any time, so the seconds per phase add up to the wall clock by construction.
// Threads: one thread (the training thread) owns a clock; snapshots are taken there and passed on as values.
// Time: injected, for tests. Units: seconds in snapshots, nanoseconds inside.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

namespace lockstep {

// The values of the label `phase` of lockstep_phase_seconds_total, in this order.
enum class Phase {
  kStartup,
  kDataWait,
  kForward,
  kBackward,
  kGradSync,  // what is left of the reduction after backward
  kOptimizer,
  kValidation,
  kCheckpointStall,
  kWaiting,  // for peers, an assignment, a stop that others must reach
  kOther,
};
inline constexpr size_t kPhaseCount = 10;

constexpr const char* to_string(Phase phase) {
  constexpr std::array<const char*, kPhaseCount> kNames{"startup",   "data_wait", "forward",    "backward",
                                                        "grad_sync", "optimizer", "validation", "checkpoint_stall",
                                                        "waiting",   "other"};
  return kNames[static_cast<size_t>(phase)];
}

struct PhaseSeconds {
  std::array<double, kPhaseCount> seconds{};

  double& operator[](Phase phase) { return seconds[static_cast<size_t>(phase)]; }
  double operator[](Phase phase) const { return seconds[static_cast<size_t>(phase)]; }
  [[nodiscard]] double total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
};

class PhaseClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Now = std::function<TimePoint()>;

  // Begins in `phase` at `began` (for a worker: the start of its process, so that loading counts as start-up).
  PhaseClock(Phase phase, TimePoint began, Now now = std::chrono::steady_clock::now)
      : now_(std::move(now)), phase_(phase), since_(began) {}

  [[nodiscard]] Phase phase() const { return phase_; }

  // Ends the running phase and begins `phase`; returns the one that ended.
  Phase enter(Phase phase) {
    const TimePoint now = now_();
    spent_[static_cast<size_t>(phase_)] += now - since_;
    since_ = now;
    return std::exchange(phase_, phase);
  }

  // Time measured inside one phase that belongs to another; at most what `from` has.
  void move(Phase from, Phase to, std::chrono::steady_clock::duration time) {
    auto& source = spent_[static_cast<size_t>(from)];
    const auto moved = std::min(time, source);
    source -= moved;
    spent_[static_cast<size_t>(to)] += moved;
  }

  // Until now, the running phase included.
  [[nodiscard]] PhaseSeconds seconds() const {
    PhaseSeconds result;
    for (size_t i = 0; i < kPhaseCount; ++i) result.seconds[i] = std::chrono::duration<double>(spent_[i]).count();
    result[phase_] += std::chrono::duration<double>(now_() - since_).count();
    return result;
  }

 private:
  Now now_;
  Phase phase_;
  TimePoint since_;
  std::array<std::chrono::steady_clock::duration, kPhaseCount> spent_{};
};

// A phase for the length of a block; afterwards the phase that ran before goes on. The clock must outlive the scope.
class [[nodiscard]] PhaseScope {
 public:
  PhaseScope(PhaseClock& clock, Phase phase) : clock_(clock), before_(clock.enter(phase)) {}
  ~PhaseScope() { clock_.enter(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseClock& clock_;
  Phase before_;
};

}  // namespace lockstep
