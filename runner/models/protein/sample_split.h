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

struct SampleToSplit {
  std::optional<ChainSplit> listed;  // what the data set's own lists say; without a value: nothing
  int64_t cluster = 0;               // samples of a cluster are alike: all of them train, or all of them validate
};

// Where the lists name samples to validate on, all others train. Where they name none, clusters are drawn by the seed:
// `share` of them validates, one at least where any is asked for, and one is left to train on. What is listed to be
// tested on does neither.
SampleSplit split_samples(const std::vector<SampleToSplit>& samples, double share, uint64_t seed);

// --use_predefined_split where no list names anything to validate on. has_clusters: of ProteinMPNN's training set.
Error no_predefined_split(const std::string& pdb_path, bool has_clusters);

// Label and value: what was found at the path, and the first files that were skipped.
std::vector<std::pair<std::string, std::string>> lines_on_source(const StructureCache& structures,
                                                                 const std::string& found);
// "", or ", 2 files skipped".
std::string count_of_skipped(const StructureCache& structures);

}  // namespace lockstep
