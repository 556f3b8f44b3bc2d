// What a worker is doing, in two grains: its activity (a stage of its life) and its phase (where the wall clock goes).
// Pure.
#pragma once

#include <array>
#include <cstddef>

namespace lockstep {

// The values of the label `phase` of lockstep_phase_seconds_total, in this order.
enum class Phase {
  kStartup,
  kDataWait,
  kForward,
  kBackward,
  kGradSync,  // what is left of the reduction after backward
  kOptimizer,
  kDevice,  // everything is queued; the host waits for the device, its collectives included
  kValidation,
  kCheckpointStall,
  kWaiting,  // for peers, an assignment, a stop that others must reach
  kOther,
};
inline constexpr size_t kPhaseCount = 11;

constexpr const char* to_string(Phase phase) {
  constexpr std::array<const char*, kPhaseCount> kNames{"startup",          "data_wait", "forward", "backward",
                                                        "grad_sync",        "optimizer", "device",  "validation",
                                                        "checkpoint_stall", "waiting",   "other"};
  return kNames[static_cast<size_t>(phase)];
}

// In a collective: a worker that stays in one of these is waiting for a peer, not stuck by itself.
constexpr bool is_collective(Phase phase) { return phase == Phase::kGradSync || phase == Phase::kWaiting; }

enum class Activity {
  kLoading,    // its data, before Hello; for a moment also after it has received an assignment
  kAwaiting,   // an assignment
  kForming,    // the process group
  kRestoring,  // the state, from a peer or a checkpoint
  kTraining,
  kEvaluating,
  kCheckpointing,  // waits for the disk
  kStopping,
};
inline constexpr size_t kActivityCount = 8;

// True in a collective, and while the group forms, which is waiting for peers, too.
constexpr bool waits_for_a_peer(Phase phase, Activity activity) {
  return is_collective(phase) || activity == Activity::kForming;
}

constexpr const char* to_string(Activity activity) {
  constexpr std::array<const char*, kActivityCount> kNames{"loading",  "awaiting",   "forming",       "restoring",
                                                           "training", "evaluating", "checkpointing", "stopping"};
  return kNames[static_cast<size_t>(activity)];
}

}  // namespace lockstep
