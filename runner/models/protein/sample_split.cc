#include "runner/models/protein/sample_split.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "runner/base/file_system.h"
#include "runner/base/plural.h"
#include "runner/data/sampler.h"

namespace lockstep {
namespace {

constexpr size_t kRelativesShown = 3;

int64_t held_out_count(double fraction, int64_t count) {
  if (fraction <= 0.0 || count < 2) return 0;
  const auto wanted = static_cast<int64_t>(std::llround(fraction * static_cast<double>(count)));
  return std::clamp<int64_t>(wanted, 1, count - 1);
}

}  // namespace

SampleSplit split_samples(const std::vector<SampleToSplit>& samples, double fraction, uint64_t seed) {
  const bool is_divided = std::any_of(samples.begin(), samples.end(), [](const SampleToSplit& sample) {
    return sample.listed == ChainSplit::kValidation;
  });
  SampleSplit split;
  std::vector<std::vector<int64_t>> clusters;  // the samples of each cluster that is drawn
  std::map<int64_t, size_t> place_of;          // a cluster's number → its index in `clusters`
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto sample = static_cast<int64_t>(i);
    const std::optional<ChainSplit>& listed = samples[i].listed;
    if (listed == ChainSplit::kTest) continue;
    if (listed == ChainSplit::kValidation) {
      split.validation.push_back(sample);
    } else if (listed == ChainSplit::kTrain && is_divided) {
      split.train.push_back(sample);
    } else {
      const auto [found, is_new] = place_of.emplace(samples[i].cluster, clusters.size());
      if (is_new) clusters.emplace_back();
      clusters[found->second].push_back(sample);
    }
  }
  const auto count = static_cast<int64_t>(clusters.size());
  const int64_t held_out = is_divided ? 0 : held_out_count(fraction, count);
  const std::vector<int64_t> order = split_order(seed, count);
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<int64_t>& drawn = clusters[static_cast<size_t>(order[static_cast<size_t>(i)])];
    std::vector<int64_t>& side = i < held_out ? split.validation : split.train;
    side.insert(side.end(), drawn.begin(), drawn.end());
  }
  return split;
}

Error no_predefined_split(const std::string& pdb_path, bool has_clusters) {
  const std::string list = join_path(pdb_path, has_clusters ? "valid_clusters.txt" : "val.txt");
  std::error_code ignored;
  const bool is_there = std::filesystem::exists(list, ignored);
  const std::string expected = has_clusters
                                   ? "expected the number of a cluster of list.csv in each of its lines, as in the "
                                     "published set"
                                   : "expected train.txt, val.txt and test.txt in that folder, with the name of a "
                                     "structure in each line";
  return {ErrorCode::kInvalid, "--use_predefined_split: " + list +
                                   (is_there ? " names nothing of what was read" : " is missing") + "; " + expected +
                                   ". Without --use_predefined_split, --val_split draws " +
                                   (has_clusters ? "clusters" : "structures") + " to validate on"};
}

Relatives relatives_of(const std::vector<SampleToSplit>& samples, const SampleSplit& split) {
  const auto cluster_of = [&](int64_t sample) { return samples[static_cast<size_t>(sample)].cluster; };
  std::set<int64_t> all;
  std::set<int64_t> trained;
  for (const SampleToSplit& sample : samples) all.insert(sample.cluster);
  for (const int64_t sample : split.train) trained.insert(cluster_of(sample));
  Relatives relatives{.groups = static_cast<int64_t>(all.size()), .validation = {}};
  for (const int64_t sample : split.validation) {
    if (trained.contains(cluster_of(sample))) relatives.validation.push_back(sample);
  }
  return relatives;
}

std::string held_out_text(const SampleSplit& split, const Relatives& relatives, int64_t num_samples,
                          const std::vector<std::string>& names) {
  const std::string count = std::to_string(split.validation.size());
  const size_t related = relatives.validation.size();
  if (related > 0) {
    return count + ", of which " + std::to_string(related) + (related == 1 ? " is" : " are") +
           " similar to structures that are trained on: " + first_of(names, kRelativesShown);
  }
  if (relatives.groups == num_samples) return count;
  return count + ", held out by " + plural(relatives.groups, "group") + " of similar sequences";
}

std::vector<std::pair<std::string, std::string>> lines_on_source(const StructureCache& structures,
                                                                 const SourceNotes& notes, bool show_all) {
  std::vector<std::pair<std::string, std::string>> lines;
  if (!notes.found.empty()) lines.emplace_back("found", notes.found);
  const auto add = [&](const char* label, const std::vector<SkippedFile>& files) {
    const auto rows = rows_of_files(label, files, show_all);
    lines.insert(lines.end(), rows.begin(), rows.end());
  };
  add("skipped", structures.skipped());
  add("left out", notes.remarks);
  add("remark", structures.remarks());
  return lines;
}

std::string count_of_skipped(const StructureCache& structures) {
  const size_t skipped = structures.skipped().size();
  return skipped > 0 ? ", " + std::to_string(skipped) + " files skipped" : "";
}

}  // namespace lockstep
