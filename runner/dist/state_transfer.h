// State transfer: at each forming all ranks come to hold the same state.
//
// Role: architecture §3, "Sync state". Who is the source is a pure function of what the ranks say; tensors are
// received into staging and swapped in at the end, so that a torn receiver can never become a source.
// Threads: the training thread. Errors: transfers throw (fault.h) when the group breaks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/tensor/named_tensor.h"

namespace lockstep {

class ProcessGroup;

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

// Pure. The highest step of the newest lineage, of the newest generation, evaluated before not yet evaluated; ties: the
// lowest rank.
SourceChoice choose_source(const std::vector<StateClaim>& claims);

// Every rank's claim, in rank order.
std::vector<StateClaim> gather_claims(ProcessGroup& group, const StateClaim& mine);

// All ranks call it. `tensors` have the same names, shapes and dtypes everywhere; on a rank that receives they are
// overwritten after everything has come, elsewhere they stay as they are.
void transfer_state(ProcessGroup& group, const NamedTensors& tensors, int source, bool receives);

// fp64 sum and sum of magnitudes of every parameter, folded: equal on equal replicas. For --drift_check_every.
std::vector<int64_t> parameter_checksum(const NamedTensors& parameters);

// The ranks whose checksum differs from rank 0's; empty when all replicas are equal.
std::vector<int> drifted_ranks(ProcessGroup& group, const NamedTensors& parameters);

}  // namespace lockstep
