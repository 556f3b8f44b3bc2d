#include "operator/train/placement_timeout.h"

#include <algorithm>

#include "runner/base/sha256.h"

namespace lockstep::train {
namespace {

// A pseudo-random number from 0 to below - 1, by the job's UID and `turn`: a repeated pass draws the same one.
api::UnixSeconds draw(const std::string& job_uid, int turn, api::UnixSeconds below) {
  constexpr size_t kHexDigits = 8;
  constexpr int kHex = 16;
  const std::string digits = sha256_hex(job_uid + "/" + std::to_string(turn)).substr(0, kHexDigits);
  return static_cast<api::UnixSeconds>(std::stoul(digits, nullptr, kHex)) % below;
}

api::UnixSeconds wait_after(const std::string& job_uid, int turn) {
  constexpr int kDoublingsMax = 16;
  const api::UnixSeconds base =
      std::min(kGiveBackFirstSeconds << std::min(turn - 1, kDoublingsMax), kGiveBackMaxSeconds);
  return base + draw(job_uid, turn, base);
}

}  // namespace

PlacementTimeout apply_placement_timeout(const api::TrainJobSpec& spec, const PlacementInput& input,
                                         Placement& placement) {
  if (!spec.health.placement_timeout_seconds || input.are_enough_ready) {
    placement = {};
    return {};
  }
  if (placement.again_at > input.now) return {.gives_back = std::nullopt, .requeue_at = placement.again_at};
  if (!input.capacity.is_short() || input.capacity.num_occupying == 0) {
    placement.short_since = 0;
    return {};
  }
  if (placement.short_since == 0) placement.short_since = input.now;
  const api::UnixSeconds end = placement.short_since + *spec.health.placement_timeout_seconds;
  if (input.now < end) return {.gives_back = std::nullopt, .requeue_at = end};
  const api::UnixSeconds waited = input.now - placement.short_since;
  placement.short_since = 0;
  placement.again_at = input.now + wait_after(input.job_uid, ++placement.times_given_back);
  return {.gives_back = "Of the " + std::to_string(input.capacity.needed) + " pods that are needed " +
                        std::to_string(input.capacity.num_scheduled) + " had been scheduled after " +
                        std::to_string(waited) + " s (health.placementTimeoutSeconds is " +
                        std::to_string(*spec.health.placement_timeout_seconds) +
                        "); all pods are deleted to free their nodes, and created again at " +
                        api::format_time(placement.again_at) + ".",
          .requeue_at = placement.again_at};
}

}  // namespace lockstep::train
