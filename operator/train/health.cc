#include "operator/train/health.h"

namespace lockstep::train {

Startup apply_startup_timeout(const api::TrainJobSpec& spec, const StartupFacts& facts,
                              api::UnixSeconds waiting_since) {
  if (facts.ready >= facts.needed || facts.were_ready || facts.waits_for_others || facts.is_loading) return {};
  Startup startup;
  startup.waiting_since = waiting_since == 0 ? facts.now : waiting_since;
  const api::UnixSeconds end = startup.waiting_since + spec.health.startup_timeout_seconds;
  if (facts.now < end) {
    startup.look_again_at = end;
    return startup;
  }
  startup.timed_out = std::to_string(facts.ready) + " of the " + std::to_string(facts.needed) +
                      " pods that are needed were ready after " + std::to_string(facts.now - startup.waiting_since) +
                      " s (health.startupTimeoutSeconds is " + std::to_string(spec.health.startup_timeout_seconds) +
                      ")";
  return startup;
}

}  // namespace lockstep::train
