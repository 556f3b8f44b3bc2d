// Data sets by what `--dataset` says: a name or a path (interactions.h), or one of two reserved words.
//
//   generated   made in memory, the same on every machine: a planted chain and popular items (synthetic.h)
//   auto        the only data set under data_dir, else `generated`
//
// A file of that name is still reached by a path ("./auto"). `auto` is settled once, by the agent, or by a worker that
// has none, before anything else looks at the flag: the run's folder, its config hash and what the ranks compare hold
// the data set's own name. Threads: pure but for the reading of folders and files.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runner/base/result.h"
#include "runner/data/interactions.h"
#include "runner/data/synthetic.h"

namespace lockstep {

inline constexpr std::string_view kGeneratedDataset = "generated";
inline constexpr std::string_view kAutoDataset = "auto";

// Of `generated`, whatever --seed says: it is a data set, not a draw. An epoch of SASRec with its default flags takes
// about a second on two cores, and twenty of them learn the chain.
SyntheticOptions generated_dataset_options();

// What `--dataset` names. Errors as those of resolve_dataset and read_interactions; `on_progress` as theirs.
Result<Dataset> load_dataset(
    const std::string& dataset, const std::string& data_dir, const ReadOptions& options,
    const std::function<void()>& on_progress = [] {});

struct DatasetChoice {
  std::string dataset;  // for --dataset: a path, or `generated`
  std::string remark;   // for a person: what will be trained on and how to change it; empty when it was found
};

// What `auto` stands for. Looked at: data_dir/*.inter, *.txt, ratings.dat, and folders with one (resolve_dataset); of
// several files those count whose beginning has one of the formats. Hidden files and lost+found do not count.
// Errors: kConflict (several; all named), kNotFound (other things only; some named), kUnavailable (cannot be read),
// kInvalid (not a folder).
Result<DatasetChoice> choose_dataset(const std::string& data_dir);

// The name of a data set given as NAME or PATH: "data/ml-100k.inter" → "ml-100k", "data/ml-1m/ratings.dat" and
// "data/ml-1m/" → "ml-1m". Text alone, no look at the disk.
std::string dataset_name(const std::string& name_or_path);

}  // namespace lockstep
