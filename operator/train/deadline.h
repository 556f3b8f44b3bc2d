// activeDeadlineSeconds: how long a run may take, from its start or its resume. Pure.
#pragma once

#include <optional>
#include <string>

#include "operator/api/trainjob.h"

namespace lockstep::train {

struct Deadline {
  std::optional<std::string> passed;  // a sentence; nothing: it has not passed
  std::optional<api::UnixSeconds> look_again_at;
};
Deadline apply_deadline(const api::TrainJobSpec& spec, api::UnixSeconds start_time, api::UnixSeconds now);

}  // namespace lockstep::train
