#include "runner/models/protein/sample_split.h"

#include <algorithm>
#include <cmath>

#include "runner/data/sampler.h"

namespace lockstep {
namespace {

int64_t held_out_count(double share, int64_t count) {
  if (share <= 0.0 || count < 2) return 0;
  const auto wanted = static_cast<int64_t>(std::llround(share * static_cast<double>(count)));
  return std::clamp<int64_t>(wanted, 1, count - 1);
}

}  // namespace

SampleSplit split_samples(const std::vector<std::optional<ChainSplit>>& listed, double share, uint64_t seed) {
  SampleSplit split;
  std::vector<int64_t> unlisted;
  for (size_t i = 0; i < listed.size(); ++i) {
    const auto sample = static_cast<int64_t>(i);
    if (!listed[i]) {
      unlisted.push_back(sample);
    } else if (*listed[i] == ChainSplit::kTrain) {
      split.train.push_back(sample);
    } else if (*listed[i] == ChainSplit::kValidation) {
      split.validation.push_back(sample);
    }
  }
  const auto count = static_cast<int64_t>(unlisted.size());
  const int64_t held_out = split.validation.empty() ? held_out_count(share, count) : 0;
  const std::vector<int64_t> order = split_order(seed, count);
  for (int64_t i = 0; i < count; ++i) {
    (i < held_out ? split.validation : split.train)
        .push_back(unlisted[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }
  return split;
}

Error no_predefined_split(const std::string& pdb_path) {
  return {ErrorCode::kInvalid, "--use_predefined_split: no structure of " + pdb_path +
                                   " is listed to validate on; expected train.txt, val.txt and test.txt in that "
                                   "folder, with the name of a structure in each line"};
}

std::vector<std::pair<std::string, std::string>> lines_on_source(const StructureCache& structures,
                                                                 const std::string& found) {
  std::vector<std::pair<std::string, std::string>> lines;
  if (!found.empty()) lines.emplace_back("found", found);
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(kShown, structures.skipped().size()); ++i) {
    const SkippedFile& file = structures.skipped()[i];
    lines.emplace_back("skipped", file.file + ": " + file.reason);
  }
  return lines;
}

std::string count_of_skipped(const StructureCache& structures) {
  const size_t skipped = structures.skipped().size();
  return skipped > 0 ? ", " + std::to_string(skipped) + " files skipped" : "";
}

}  // namespace lockstep
