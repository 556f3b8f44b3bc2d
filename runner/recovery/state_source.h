// Which state a group goes on from, and where in the run's history that state then belongs. Pure.
//
// Role: the rules by which a new group chooses its state (docs/recovery.md). loop/state_sync gathers the claims and
// moves the tensors; tests/runner/recovery/membership_simulation runs the same rules under faults. Threads: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/checkpoint_layout.h"

namespace lockstep {

// The state that a rank holds when a group has formed.
struct StateClaim {
  uint64_t lineage = 0;  // generation in which the state was last restored or initialised
  int64_t step = 0;      // committed steps
  // Step of the last evaluation. When a group breaks at the end of an evaluation, some ranks have its result in their
  // state (best figure, early stopping, plateau), and others have not.
  int64_t evaluated_step = -1;
  bool has_state = false;
  // Of the newest group in which the state was synced. Two groups of different sizes compute different states for the
  // same step, because they add up in different orders.
  uint64_t generation = 0;
};

struct SourceChoice {
  std::optional<int> source;   // nullopt: no rank has a state; read a checkpoint, or initialise
  std::vector<bool> receives;  // by rank: true for all that are not equal to the source
  std::string reason;          // in words, for the log
};

// Chooses the rank with the newest lineage; of those the one with the highest step; then with the newest generation;
// then with the latest evaluation; then the lowest rank.
SourceChoice choose_source(const std::vector<StateClaim>& claims);

// True when other groups of the same coordinator may have formed and ended between the group in which `best`, the best
// claim, was last synced and the group of `generation`. What they committed may be in a checkpoint although no rank
// holds it any more, so only then must the volume be read. (Under a new coordinator a rank's state wins, because a
// checkpoint may be of an old node 0 that lives on behind a network partition.)
bool may_have_missed_groups(const StateClaim& best, uint64_t generation);

// A checkpoint, as far as it competes with what ranks hold.
struct SavedState {
  uint64_t generation = 0;  // of the group that wrote it
  int64_t step = 0;
};
// True when a later group than the best claim's wrote the checkpoint, and at a higher step.
bool is_newer(const SavedState& saved, const StateClaim& best);

struct StateAge {
  uint64_t lineage = 0;
  uint64_t generation = 0;
};

// The age of the state that a group of `generation` goes on from. `lineage`: that state's; `claims`: those of all ranks
// of the group, which all compute the same result. The new generation is that of the group, or above every claim's if a
// clock was set back. Under a new coordinator the state begins a new lineage: the old one may live on behind a network
// partition, with a group and a node 0 of its own, and what that group commits must never count as newer.
StateAge age_in_group(uint64_t lineage, uint64_t generation, const std::vector<StateClaim>& claims);

// The stamp of a state that no rank held, in the group of `here`: it was read from a checkpoint with the stamp `read`,
// or made from the seed (nullopt). It is above the checkpoint's stamp even if a clock was set back, because what
// follows from a checkpoint must never count as older than it. The state begins a new lineage with this generation.
CheckpointStamp stamp_when_restored(const CheckpointStamp& here, const std::optional<CheckpointStamp>& read);

}  // namespace lockstep
