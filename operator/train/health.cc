#include "operator/train/health.h"

namespace lockstep::train {

Startup apply_startup_timeout(const api::TrainJobSpec& spec, const StartupInput& input,
                              api::UnixSeconds waiting_since) {
  if (input.ready >= input.needed || input.were_ready || input.waits_for_others || input.is_loading) return {};
  Startup startup;
  startup.waiting_since = waiting_since == 0 ? input.now : waiting_since;
  const api::UnixSeconds end = startup.waiting_since + spec.health.startup_timeout_seconds;
  if (input.now < end) {
    startup.requeue_at = end;
    return startup;
  }
  startup.timed_out = std::to_string(input.ready) + " of the " + std::to_string(input.needed) +
                      " pods that are needed were ready after " + std::to_string(input.now - startup.waiting_since) +
                      " s (health.startupTimeoutSeconds is " + std::to_string(spec.health.startup_timeout_seconds) +
                      ")";
  return startup;
}

}  // namespace lockstep::train
