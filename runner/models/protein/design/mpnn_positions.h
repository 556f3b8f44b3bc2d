// Parses the texts by which flags select residues: "A:12-20,25 B:7" selects some, "A:5=B:5" ties two. Numbers are those
// of the structure's file, with their insertion code where there is one (A:52A).
//
// Role: text → indices of residues in a StructureView. Threads: pure functions.
// Errors (kInvalid): text that cannot be read; a chain or number that is not in the structure (the message names those
// that are).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/protein/data/structure_cache.h"

namespace lockstep {

// Parses "A B" or "A,B". Returns indices in view.chains, in the order of the file; an empty text selects all proteins.
Result<std::vector<size_t>> chains_of(const StructureView& view, std::string_view text);

// Parses groups "CHAIN:NUMBERS" with spaces or semicolons between them. NUMBERS: numbers and ranges with commas between
// them. Both ends of a range must be in the structure; numbers between them that are missing there are skipped.
Result<std::vector<int64_t>> positions_of(const StructureView& view, std::string_view text);

// Parses groups with spaces or semicolons between them, each "CHAIN:NUMBERS=CHAIN:NUMBERS…" with equally many positions
// in each part. The first positions of all parts are tied, then the second, and so on: "A:1-2=B:1-2" ties A1 with B1
// and A2 with B2.
Result<std::vector<std::vector<int64_t>>> tied_positions_of(const StructureView& view, std::string_view text);

}  // namespace lockstep
