// PhaseClock: measures how a worker's wall-clock time is divided into phases.
//
// Role: exactly one phase is running at any time, so the seconds per phase add up to the wall clock by construction.
// Threads: one thread (the training thread) owns a clock; snapshots are taken there and passed on as values.
// Time: injected, for tests. Units: seconds in snapshots, nanoseconds inside.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>

#include "runner/base/clock.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/phase.h"

namespace lockstep {

struct PhaseSeconds {
  std::array<double, kPhaseCount> seconds{};

  double& operator[](Phase phase) { return seconds[static_cast<size_t>(phase)]; }
  double operator[](Phase phase) const { return seconds[static_cast<size_t>(phase)]; }
  [[nodiscard]] double total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
};

class PhaseClock {
 public:
  using Now = std::function<TimePoint()>;

  // Begins in `phase` at `began` (for a worker: the start of its process, so that loading counts as start-up).
  PhaseClock(Phase phase, TimePoint began, Now now = std::chrono::steady_clock::now)
      : now_(std::move(now)), phase_(phase), since_(began) {}

  // From now on every change is written to `page`, which outlives the clock.
  void show_on(BeatPage& page) {
    page_ = &page;
    show(since_);
  }

  [[nodiscard]] Phase phase() const { return phase_; }

  // Ends the running phase and begins `phase`; returns the one that ended.
  Phase enter(Phase phase);

  // To be called during a long phase, each time it has made progress. The agent takes a phase without progress for a
  // hang.
  void progress();

  // Moves time that was measured in phase `from` to the phase to which it belongs; at most the time that `from` has.
  void move(Phase from, Phase to, std::chrono::steady_clock::duration time) {
    auto& source = spent_[static_cast<size_t>(from)];
    const auto moved = std::min(time, source);
    source -= moved;
    spent_[static_cast<size_t>(to)] += moved;
    if (page_ != nullptr) {
      show_spent(from);
      show_spent(to);
    }
  }

  // Until now, the running phase included.
  [[nodiscard]] PhaseSeconds seconds() const {
    PhaseSeconds result;
    for (size_t i = 0; i < kPhaseCount; ++i) result.seconds[i] = std::chrono::duration<double>(spent_[i]).count();
    result[phase_] += std::chrono::duration<double>(now_() - since_).count();
    return result;
  }

 private:
  static int64_t nanoseconds(std::chrono::steady_clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }
  void show(TimePoint now) {
    page_->phase.store(phase_, std::memory_order_relaxed);
    page_->changed_ns.store(nanoseconds(now.time_since_epoch()), std::memory_order_relaxed);
  }
  void show_spent(Phase phase) {
    const auto i = static_cast<size_t>(phase);
    page_->phase_ns[i].store(nanoseconds(spent_[i]), std::memory_order_relaxed);
  }

  Now now_;
  Phase phase_;
  TimePoint since_;
  std::array<std::chrono::steady_clock::duration, kPhaseCount> spent_{};
  BeatPage* page_ = nullptr;  // borrowed, see show_on
};

// Enters a phase for the duration of a block; its destructor returns to the phase before. The clock must outlive it.
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
