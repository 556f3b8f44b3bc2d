// health.startupTimeoutSeconds: how long too few pods may be ready. Pure. (placement_timeout has
// placementTimeoutSeconds, pod_end notReadyTimeoutSeconds; stallTimeoutSeconds is the agents' to keep.)
//
// It catches faults of the job itself: an image that cannot be pulled, a program that never becomes ready. The time
// does not run while the job lacks nodes or quota, while init containers are all that it waits for, or while its
// workers load or prepare their data and make progress. Once enough pods have been ready, image and program are known
// to be good and the timeout no longer applies: trouble with a registry or a mount must not end a run of days. Crashes
// are handled by restartPolicy.
#pragma once

#include <optional>
#include <string>

#include "operator/api/trainjob.h"

namespace lockstep::train {

struct StartupInput {
  int ready = 0;                  // pods that are ready, or have ended with 0
  int needed = 0;                 // elastic.minNodes, or all
  bool were_ready = false;        // `needed` pods were ready at some time in the job's life
  bool waits_for_others = false;  // for nodes or quota, and nothing else is known to be wrong
  bool is_loading = false;        // workers load their data and make progress, or init containers do what they do
  api::UnixSeconds now = 0;
};

struct Startup {
  api::UnixSeconds waiting_since = 0;    // 0: the time does not run
  std::optional<std::string> timed_out;  // a clause: how many pods were ready after how long; nothing: it goes on
  std::optional<api::UnixSeconds> requeue_at;
};
// `waiting_since` as it was decided last time; it begins anew whenever the time did not run in between.
Startup apply_startup_timeout(const api::TrainJobSpec& spec, const StartupInput& input, api::UnixSeconds waiting_since);

}  // namespace lockstep::train
