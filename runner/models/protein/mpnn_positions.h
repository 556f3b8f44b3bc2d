// Which residues of a structure a person means: "A:12-20,25 B:7" for some of them, "A:5=B:5" for those that belong
// together. Numbers are those of the structure's file, with their insertion code where there is one (A:52A).
//
// Role: text → places in a StructureView. Threads: pure functions. Errors (kInvalid): the text that
// cannot be read, or the chain and the number that the structure lacks, with what it has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/structures/structure_cache.h"

namespace lockstep {

// "A B" or "A,B". Indices in view.chains, in the order of the file; all proteins for an empty text.
Result<std::vector<size_t>> chains_of(const StructureView& view, std::string_view text);

// Groups "CHAIN:NUMBERS" with spaces or semicolons between them. NUMBERS: numbers and ranges with commas between them.
// A range has to have both its ends in the structure; what a gap leaves out between them is left out here, too.
Result<std::vector<int64_t>> positions_of(const StructureView& view, std::string_view text);

// Groups with spaces or semicolons between them, each "CHAIN:NUMBERS=CHAIN:NUMBERS…" with equally many positions in
// each part: the first of each part are tied, then the second, and so on.
Result<std::vector<std::vector<int64_t>>> tied_positions_of(const StructureView& view, std::string_view text);

}  // namespace lockstep
