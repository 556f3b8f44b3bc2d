// `lockstep protein score` and `lockstep protein design`: ProteinMPNN on structures, with weights of a checkpoint or
// the published ones.
//
// Each structure is encoded once; orders and sequences are decoded together, some at a time. The random numbers of a
// sequence depend on --seed, its temperature and its number alone: neither on --batch nor on the other structures.
// Threads: one, and torch's.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Data error: structures that cannot be read. Usage: chains or residues that a structure lacks, weights of another
// shape. Checkpoint: weights that are not finite.
std::optional<Failure> mpnn_score(const TaskInput& input);
std::optional<Failure> mpnn_design(const TaskInput& input);

}  // namespace lockstep
