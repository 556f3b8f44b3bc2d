// Which samples train and which validate, for both protein models, and the lines of the start table that both have.
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/structures/structure_cache.h"

namespace lockstep {

// Numbers of samples. validation may be empty: then those that train are to validate, too.
struct SampleSplit {
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
};

// listed: of each sample what the data set's own lists say; without a value: nothing. Samples that no list names are
// drawn by the seed: `share` of them validates, one at least where any is asked for, and one is left to train on. Where
// the lists name some that validate, all the others train.
SampleSplit split_samples(const std::vector<std::optional<ChainSplit>>& listed, double share, uint64_t seed);

// --use_predefined_split where no list names anything to validate on.
Error no_predefined_split(const std::string& pdb_path);

// Label and value: what was found at the path, and the first files that were skipped.
std::vector<std::pair<std::string, std::string>> lines_on_source(const StructureCache& structures,
                                                                 const std::string& found);
// "", or ", 2 files skipped".
std::string count_of_skipped(const StructureCache& structures);

}  // namespace lockstep
