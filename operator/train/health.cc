#include "operator/train/health.h"

namespace lockstep::train {

Startup apply_startup_timeout(const api::TrainJobSpec& spec, const StartupScene& scene,
                              api::UnixSeconds waiting_since) {
  if (scene.ready >= scene.needed || scene.were_ready || scene.waits_for_others || scene.is_loading) return {};
  Startup startup;
  startup.waiting_since = waiting_since == 0 ? scene.now : waiting_since;
  const api::UnixSeconds end = startup.waiting_since + spec.health.startup_timeout_seconds;
  if (scene.now < end) {
    startup.look_again_at = end;
    return startup;
  }
  startup.timed_out = std::to_string(scene.ready) + " of the " + std::to_string(scene.needed) +
                      " nodes that are needed were ready after " + std::to_string(scene.now - startup.waiting_since) +
                      " s (health.startupTimeoutSeconds is " + std::to_string(spec.health.startup_timeout_seconds) +
                      ")";
  return startup;
}

}  // namespace lockstep::train
