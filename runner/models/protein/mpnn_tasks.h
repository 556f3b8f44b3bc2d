// `lockstep protein score` and `lockstep protein design`: ProteinMPNN on structures, with weights of a checkpoint or
// the published ones.
//
// Structures of about the same length are encoded together, as many as --batch_tokens has room for, each of them once;
// their orders and sequences are decoded together. Results come in the order of the structures. The random numbers of a
// sequence depend on --seed, its temperature and its number alone: neither on --batch nor on the other structures.
// Held at a time: one batch, some hundred structures read ahead, and results that wait for those before them.
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
