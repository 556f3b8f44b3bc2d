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
#include "runner/models/protein/data/structure_cache.h"

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
// random with `seed`: `fraction` of them for validation, but at least one if fraction > 0, and at least one is left for
// training. Samples that are listed for the test are in neither split.
SampleSplit split_samples(const std::vector<SampleToSplit>& samples, double fraction, uint64_t seed);

// How structures that are validated on are related to those that are trained on, by the groups of sequence_groups.
struct Relatives {
  int64_t groups = 0;               // of all samples
  std::vector<int64_t> validation;  // samples whose group has samples that are trained on
};
Relatives relatives_of(const std::vector<SampleToSplit>& samples, const SampleSplit& split);

// The line of the start table on the validation samples: "3", "3, by 27 groups of similar sequences", or "3, of which 2
// are similar to structures that are trained on: 1abc, 2abc". `names`: of those.
std::string held_out_text(const SampleSplit& split, const Relatives& relatives, int64_t num_samples,
                          const std::vector<std::string>& names);

// The error for --use_predefined_split when no list names a validation sample. has_clusters: the lists are those of
// ProteinMPNN's training set, which name clusters.
Error no_predefined_split(const std::string& pdb_path, bool has_clusters);

// What is known of the data beside the structures.
struct SourceNotes {
  std::string found;                 // what was found at --pdb_path
  std::vector<SkippedFile> remarks;  // what was left out without being read
};

// Labels and values for the start table: what was found at the path, the first files that were skipped and the first
// remarks; with show_all, all of them.
std::vector<std::pair<std::string, std::string>> lines_on_source(const StructureCache& structures,
                                                                 const SourceNotes& notes, bool show_all);
// "", or ", 2 files skipped".
std::string count_of_skipped(const StructureCache& structures);

}  // namespace lockstep
