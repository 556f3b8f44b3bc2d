// `lockstep protein score` and `lockstep protein design`: ProteinMPNN on structures, with weights of a checkpoint or
// the published ones.
//
// Structures of about the same length are encoded together, as many as --batch_tokens has room for, each of them once;
// their orders and sequences are decoded together. Results come in the order of the structures. The random numbers of a
// sequence depend only on --seed, its temperature and its number, not on --batch or the other structures.
// Memory: one batch, a few hundred structures that are prepared ahead, and the results that wait for those of earlier
// structures.
// Threads: one, and torch's.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Errors: kData: the structures cannot be read. kUsage: a checkpoint of --variant mdm; a flag or file names chains or
// residues that a structure does not have; weights of another shape. kCheckpoint: weights that are not finite; the
// result cannot be written.
std::optional<Failure> run_protein_task(const TaskInput& input);

}  // namespace lockstep
