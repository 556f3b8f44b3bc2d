// health.startupTimeoutSeconds: how long too few pods may be ready. Pure. (stallTimeoutSeconds is the agents' to keep.)
#pragma once

#include <optional>
#include <string>

#include "operator/api/trainjob.h"

namespace lockstep::train {

struct StartupScene {
  int ready = 0;   // nodes that are ready or done
  int needed = 0;  // elastic.minNodes, or all
  api::UnixSeconds now = 0;
};

struct Startup {
  api::UnixSeconds waiting_since = 0;    // 0: enough are ready
  std::optional<std::string> timed_out;  // a clause: how long was waited for how many
  std::optional<api::UnixSeconds> look_again_at;
};
// `waiting_since` as it was decided last time; it begins anew whenever the pods were ready in between.
Startup apply_startup_timeout(const api::TrainJobSpec& spec, const StartupScene& scene, api::UnixSeconds waiting_since);

}  // namespace lockstep::train
