// `generated`: structures that are made in memory, with something to learn, free to ship.
//
// Role: what the demo, tests, benchmarks and a container without data train on.
// How they are made: each residue draws a state (helix, strand, loop: a Markov chain that keeps a helix for about ten
// residues, a strand for five, a loop for three) and its torsion angles φ and ψ around the state's own; the backbone
// follows from ideal bond lengths and angles. The residue's type is then drawn from the geometry alone: the state and
// whether it has many CA within 10 Å choose three to five types, of which the first is taken half of the time, the next
// a quarter, and so on; one residue in ten is any of the twenty. So what is known of the backbone is right for nearly
// half of the residues, and always the most frequent type for one in five. χ1 is drawn around one of three
// rotamers that follows from the type. Real chemistry it is not. Threads: pure; the same structures for the same spec
// everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/structures/structure.h"

namespace lockstep {

struct GeneratedStructuresSpec {
  int64_t count = 100;
  int64_t length = 100;  // residues on average: each structure has between half as many and half as many more
  uint64_t seed = 42;
};

// `generated`, `generated:COUNT`, `generated:COUNT:LENGTH`; nothing for other words, which are paths. kInvalid for
// numbers that cannot be (COUNT in [1, 1,000,000], LENGTH in [2, 10,000]).
Result<std::optional<GeneratedStructuresSpec>> parse_generated_structures(std::string_view text);

// Structure `index` of a spec: one chain "A", or (every fourth) two chains of one sequence.
Structure generated_structure(const GeneratedStructuresSpec& spec, int64_t index);

}  // namespace lockstep
