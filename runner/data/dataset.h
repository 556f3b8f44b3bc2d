// Resolves the value of `--dataset`: a name or a path (interactions.h), or one of two reserved words.
//
//   generated   made in memory, the same on every machine: a planted chain and popular items (synthetic.h)
//   auto        the only data set under data_dir, else `generated`
//
// A file of such a name can be given as a path ("./auto"). `auto` is resolved once, by the agent or by a worker without
// an agent, before anything else uses the flag. So the run's folder, the config hash and the comparison between ranks
// use the name of the data set that was found. Threads: pure, except that folders and files are read.
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

// The options of `generated`. They do not depend on --seed, so the data set is always the same. An epoch of SASRec with
// its default flags takes about a second on two cores, and twenty epochs learn the chain.
SyntheticOptions generated_dataset_options();

// Reads the data set that `--dataset` names. Errors: those of resolve_dataset and read_interactions; `on_progress`: as
// for these.
Result<Dataset> load_dataset(
    FileSystem& fs, const std::string& dataset, const std::string& data_dir, const ReadOptions& options,
    const std::function<void()>& on_progress = [] {});

struct DatasetChoice {
  std::string dataset;  // for --dataset: a path, or `generated`
  std::string remark;   // a warning when none was found: what is trained on instead, and how to change it; else empty
};

// Resolves `auto`. Candidates: data_dir/*.inter, *.txt, ratings.dat, ratings.csv, u.data, these with .gz, *.zip, and
// folders with one of these (resolve_dataset); of several files only those whose beginning matches a format. Hidden
// files and lost+found are ignored. Errors: kConflict (several candidates, which it names), kNotFound (only other
// files, some of which it names), kUnavailable (cannot be read), kInvalid (not a folder).
Result<DatasetChoice> choose_dataset(FileSystem& fs, const std::string& data_dir);

// The name of a data set given as NAME or PATH: "data/ml-100k.inter" → "ml-100k", "data/ml-1m/ratings.dat" and
// "data/ml-1m/" → "ml-1m". Looks only at the text, not at the disk.
std::string dataset_name(const std::string& name_or_path);

}  // namespace lockstep
