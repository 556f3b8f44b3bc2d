#include "runner/telemetry/phase_clock.h"

namespace lockstep {

Phase PhaseClock::enter(Phase phase) {
  const TimePoint now = now_();
  spent_[static_cast<size_t>(phase_)] += now - since_;
  since_ = now;
  const Phase ended = std::exchange(phase_, phase);
  if (page_ != nullptr) {
    show_spent(ended);
    show(now);
  }
  return ended;
}

void PhaseClock::progress() { enter(phase_); }

}  // namespace lockstep
