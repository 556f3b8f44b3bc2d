// health.placementTimeoutSeconds: a job of which too few pods are scheduled deletes them. Pure.
//
// Two jobs that each hold half of the nodes would wait for each other for ever. So each deletes its pods and tries
// again later, after a time that grows with each try and differs between jobs.
#pragma once

#include <optional>
#include <string>

#include "operator/api/trainjob.h"
#include "operator/train/bookkeeping.h"
#include "operator/train/capacity.h"

namespace lockstep::train {

// The wait after the n-th time in a row is kGiveBackFirstSeconds · 2^(n-1), at most kGiveBackMaxSeconds, plus a
// pseudo-random time, drawn from the job's UID, of up to the same length.
inline constexpr api::UnixSeconds kGiveBackFirstSeconds = 30;
inline constexpr api::UnixSeconds kGiveBackMaxSeconds = 600;

struct PlacementInput {
  Capacity capacity;
  bool are_enough_ready = false;  // pods are ready, or have ended with 0
  std::string job_uid;
  api::UnixSeconds now = 0;
};

struct PlacementTimeout {
  std::optional<std::string> gives_back;  // a sentence: all pods are deleted now
  std::optional<api::UnixSeconds> requeue_at;
};
// Writes into `placement` when pods may be made again.
PlacementTimeout apply_placement_timeout(const api::TrainJobSpec& spec, const PlacementInput& input,
                                         Placement& placement);

}  // namespace lockstep::train
