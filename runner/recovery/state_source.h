// Which state a group goes on from, and where in the run's history that state then belongs. Pure.
//
// Role: the rules of architecture §3, "Sync state". loop/state_sync gathers the claims and moves the tensors;
// tests/runner/recovery/membership_simulation runs the same rules under faults.
// Threads: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/checkpoint_layout.h"

namespace lockstep {

// What a rank holds when it comes to a forming.
struct StateClaim {
  uint64_t lineage = 0;  // generation in which the state was last restored or initialised
  int64_t step = 0;      // committed steps
  // The step that the last evaluation looked at. A group that breaks at the end of an evaluation leaves ranks that have
  // made it, with its best figure, its patience and its plateau, beside ranks that have not.
  int64_t evaluated_step = -1;
  bool has_state = false;
  // The newest that the state was synced in. States of one step that two groups made, one after the other, are not the
  // same where the groups differed in size: they added up in another order.
  uint64_t generation = 0;
};

struct SourceChoice {
  std::optional<int> source;   // nobody has state: read a checkpoint, or initialise
  std::vector<bool> receives;  // by rank: true for all that are not equal to the source
  std::string reason;          // in words, for the log
};

// Among the ranks: the highest step of the newest lineage, of the newest generation, evaluated before not yet
// evaluated; ties: the lowest rank.
SourceChoice choose_source(const std::vector<StateClaim>& claims);

// Groups of the same coordinator may have come and gone between the one that `best`, the best claim, was synced in last
// and the one of `generation`: what they committed may be on the volume, though nobody is left who holds it. Only then
// is the volume worth a look. (Under a new coordinator a live state wins: what is on the volume may be of an old node 0
// that lives on behind a partition.)
bool may_have_missed_groups(const StateClaim& best, uint64_t generation);

// A checkpoint, as far as it competes with what ranks hold.
struct SavedState {
  uint64_t generation = 0;  // of the group that wrote it
  int64_t step = 0;
};
// A later group than the best claim's has come further.
bool is_newer(const SavedState& saved, const StateClaim& best);

struct StateAge {
  uint64_t lineage = 0;
  uint64_t generation = 0;
};

// Of a state of `lineage` in a group of `generation`, whose ranks claimed `claims`; all ranks find the same. It goes on
// in this generation, or above every claim's when a clock was set back. Under a new coordinator it begins a new
// lineage: the one before it may live on behind a partition, with a group and a node 0 of its own, and what that group
// commits must never be taken for newer.
StateAge age_in_group(uint64_t lineage, uint64_t generation, const std::vector<StateClaim>& claims);

// Of a state that nobody held, in the group of `here`: read from a checkpoint that `read` wrote, or made from the seed
// (nullopt). Above the checkpoint's even when a clock was set back: what follows from a checkpoint must never be taken
// for older than it. The state begins a lineage of its own, with this generation.
CheckpointStamp stamp_when_restored(const CheckpointStamp& here, const std::optional<CheckpointStamp>& read);

}  // namespace lockstep
