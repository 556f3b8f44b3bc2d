// Splits the samples of both protein models into training and validation, and makes the lines of the start table that
// both print.
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

// Sample numbers. Where `validation` is empty, the caller validates on the training samples.
struct SampleSplit {
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
};

struct SampleToSplit {
  std::optional<ChainSplit> listed;  // the split in the data set's own lists; unset: the sample is in none of them
  int64_t cluster = 0;               // samples of a cluster are similar; they all go into the same split
};

// Where the lists name validation samples, all others are for training. Where they name none, clusters are drawn at
// random with `seed`: `share` of them for validation, but at least one if share > 0, and at least one is left for
// training. Samples that are listed for the test are in neither split.
SampleSplit split_samples(const std::vector<SampleToSplit>& samples, double share, uint64_t seed);

// The error for --use_predefined_split when no list names a validation sample. has_clusters: the lists are those of
// ProteinMPNN's training set, which name clusters.
Error no_predefined_split(const std::string& pdb_path, bool has_clusters);

// Labels and values for the start table: what was found at the path, and the first files that were skipped.
std::vector<std::pair<std::string, std::string>> lines_on_source(const StructureCache& structures,
                                                                 const std::string& found);
// "", or ", 2 files skipped".
std::string count_of_skipped(const StructureCache& structures);

}  // namespace lockstep
