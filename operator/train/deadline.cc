#include "operator/train/deadline.h"

namespace lockstep::train {

Deadline apply_deadline(const api::TrainJobSpec& spec, api::UnixSeconds start_time, api::UnixSeconds now) {
  if (!spec.active_deadline_seconds) return {};
  const api::UnixSeconds end = start_time + *spec.active_deadline_seconds;
  if (now < end) return {.passed = std::nullopt, .look_again_at = end};
  return {.passed = "The job has run for " + std::to_string(now - start_time) + " s, since " +
                    api::format_time(start_time) + ", and spec.activeDeadlineSeconds is " +
                    std::to_string(*spec.active_deadline_seconds) + "."};
}

}  // namespace lockstep::train
