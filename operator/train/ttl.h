// ttlSecondsAfterFinished: when a finished job is deleted. Pure.
#pragma once

#include <optional>

#include "operator/api/trainjob.h"

namespace lockstep::train {

struct Ttl {
  bool is_over = false;
  std::optional<api::UnixSeconds> look_again_at;
};
Ttl apply_ttl(const api::TrainJobSpec& spec, api::UnixSeconds completion_time, api::UnixSeconds now);

}  // namespace lockstep::train
