// Structures as lines of JSON, as ProteinMPNN's helper scripts write them.
//
// Two forms, told apart line by line:
//   several chains   name, num_of_chains, seq, and for each chain X: seq_chain_X and coords_chain_X, an object
//                    {N_chain_X: [[x, y, z], …], CA_chain_X, C_chain_X, O_chain_X} (parse_multiple_chains.py)
//   one chain        name, seq, coords {N: [[x, y, z], …], CA, C, O} (the CATH set of Ingraham et al. 2019)
// "-" in a sequence is X. NaN, null and Infinity are missing coordinates: Python writes them though JSON has none.
// Threads: pure.
#pragma once

#include <string_view>

#include "runner/base/result.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

// Errors: kInvalid; kCorrupt when it is no JSON; those of check_structure.
Result<Structure> parse_structure_json(std::string_view line);

}  // namespace lockstep
