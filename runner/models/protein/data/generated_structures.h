// `generated`: structures made in memory, with something to learn, free of copyright.
//
// Role: training data for the demo, tests, benchmarks and a container without data.
// How they are made: each residue draws a state (helix, strand, loop: a Markov chain that keeps a helix for about ten
// residues, a strand for five, a loop for three) and its torsion angles φ and ψ around those of the state; the backbone
// follows from ideal bond lengths and angles. The residue's type depends only on the geometry: the state, and whether
// many CA are within 10 Å, select three to five types, of which the first is drawn with probability 1/2, the next with
// 1/4, and so on; one residue in ten is any of the twenty. So a model that knows the backbone can predict nearly half
// of the residues; always predicting the most frequent type is right for one in five. χ1 is drawn around one of three
// rotamers that follows from the type. This is not real chemistry. Threads: pure; the same structures for the same spec
// on all machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

struct GeneratedStructuresSpec {
  int64_t count = 100;
  int64_t length = 100;  // residues on average: each structure has between half as many and half as many more
  uint64_t seed = 42;
};

// Parses `generated`, `generated:COUNT`, `generated:COUNT:LENGTH`; nullopt for other texts, which are paths. kInvalid
// unless COUNT is in [1, 1,000,000] and LENGTH in [2, 10,000].
Result<std::optional<GeneratedStructuresSpec>> parse_generated_structures(std::string_view text);

// Structure `index` of a spec: one chain "A", or (every fourth) two chains of one sequence.
Structure generated_structure(const GeneratedStructuresSpec& spec, int64_t index);

}  // namespace lockstep
