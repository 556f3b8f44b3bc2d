// Which state a group goes on from, and where in the run's history that state then belongs. Pure.
//
// Role: the rules by which a new group chooses its state (docs/recovery.md), for both kinds of workers. The ranks of
// lockstep-worker tell each other what they hold when their group has formed (loop/state_sync, which also moves the
// tensors); those of a program with the package tell the coordinator, which gives each its Plan with its place.
// tests/runner/recovery/membership_simulation runs the same rules under faults. Threads: none.
//
// Collectives. A rank of the second kind keeps the results of collectives since its last commit. When a group breaks,
// some ranks may have the result of the newest collective and others may not: these get it from one that kept it, and
// meet the others in the next collective. A rank that gets a state makes its own part of every collective since that
// commit, but gets their results in the same way. So each collective is made once with all ranks, and nobody makes one
// again that others will not make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/messages.h"

namespace lockstep {

struct SourceChoice {
  std::optional<int> source;   // nullopt: no rank has a state; read a checkpoint, or initialise
  std::vector<bool> receives;  // by rank: it gets the state of the source
  std::string reason;          // in words, for the log
  // The rest only where ranks keep results of collectives.
  uint64_t complete = 0;      // collectives that are complete for everybody once the results are there
  std::optional<int> keeper;  // the rank that sends kept results; nullopt: nobody lacks any
  // By rank: the first collective whose result it gets from the keeper.
  std::vector<std::optional<uint64_t>> lacks_from;
  std::vector<int> behind;  // ranks that lack results which nobody keeps: they must be replaced
  bool is_lost = false;     // ranks need a state, and the source cannot hand it over
};

// Chooses the rank with the newest lineage; of those the one with the highest step; then with the newest generation;
// then with the latest evaluation; then one whose state is whole; then the lowest rank. All that are not equal to it
// get its state, but those that only lack results which a rank has kept, and those that cannot take it. The keeper is,
// of those that have completed most, the one that has kept most, so that as few as possible are behind.
SourceChoice choose_source(const std::vector<StateClaim>& claims);

// What each rank does, by rank. Empty when there is no source.
std::vector<Plan> plans_of(const SourceChoice& choice);

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
