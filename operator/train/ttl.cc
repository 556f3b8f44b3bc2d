#include "operator/train/ttl.h"

namespace lockstep::train {

Ttl apply_ttl(const api::TrainJobSpec& spec, api::UnixSeconds completion_time, api::UnixSeconds now) {
  if (!spec.ttl_seconds_after_finished) return {};
  const api::UnixSeconds end = completion_time + *spec.ttl_seconds_after_finished;
  if (now >= end) return {.is_over = true};
  return {.is_over = false, .look_again_at = end};
}

}  // namespace lockstep::train
