#include "runner/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "runner/base/plural.h"

namespace lockstep {
namespace {

constexpr size_t kNamesShown = 5;
constexpr const char* kWhatIsLookedFor =
    "NAME.inter, NAME.txt, ratings.dat, ratings.csv, u.data, a zip archive of one, or a folder NAME with one";

// The names in a folder, and the paths of those that may be data sets, judged by name.
struct Listing {
  std::vector<std::string> names;       // sorted
  std::vector<std::string> candidates;  // paths, in the same order
};

bool is_named_like_data(const std::string& name) {
  if (name.ends_with(".gz")) return is_named_like_data(name.substr(0, name.size() - 3));
  return name.ends_with(".inter") || name.ends_with(".txt") || name.ends_with(".zip") || name == "ratings.dat" ||
         name == "ratings.csv" || name == "u.data";
}

// The data set's file; empty when the name is not that of a data set.
std::string candidate_at(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  std::error_code ignored;  // a path that cannot be examined counts as missing
  if (std::filesystem::is_directory(path, ignored)) {
    const Result<std::string> inside = resolve_dataset(path + "/", folder);
    return inside.ok() ? *inside : "";
  }
  return is_named_like_data(name) && std::filesystem::is_regular_file(path, ignored) ? path : "";
}

// Empty when there is no such folder.
Result<Listing> list_folder(const std::string& folder) {
  Listing listing;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) return listing;
  if (!error && !std::filesystem::is_directory(status)) {
    return Error{ErrorCode::kInvalid, "--dataset auto: --data_dir " + folder +
                                          " is a file; expected a folder, or give " + "--dataset " + folder};
  }
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with('.') && name != "lost+found") listing.names.push_back(name);
  }
  if (error) {
    return Error{ErrorCode::kUnavailable, "--dataset auto: " + folder + " cannot be read: " + error.message() +
                                              "; let this user read it, or give --dataset PATH"};
  }
  std::sort(listing.names.begin(), listing.names.end());
  for (const std::string& name : listing.names) {
    // A folder NAME beside NAME.zip is the archive, unpacked.
    const bool is_zip = name.ends_with(".zip");
    if (is_zip && !candidate_at(folder, name.substr(0, name.size() - 4)).empty()) continue;
    if (std::string path = candidate_at(folder, name); !path.empty()) listing.candidates.push_back(std::move(path));
  }
  return listing;
}

std::string how_to_train_on_yours(const std::string& folder) {
  // An absolute path is typical of a container, where data come from a volume.
  if (!folder.starts_with('/')) return "To train on yours, put it there or give --dataset PATH";
  return "To train on yours, mount its folder there: docker run -v \"$PWD/data:" + folder +
         "\" IMAGE; in a TrainJob, a volume at " + folder;
}

DatasetChoice generated_instead(const std::string& folder) {
  const SyntheticOptions made = generated_dataset_options();
  return {std::string(kGeneratedDataset), "no data set in " + folder + ": training on a generated one (" +
                                              std::to_string(made.users) + " users, " + std::to_string(made.items) +
                                              " items, planted transitions). " + how_to_train_on_yours(folder)};
}

}  // namespace

SyntheticOptions generated_dataset_options() {
  return {.seed = 42, .users = 500, .items = 200, .events_min = 30, .events_max = 60, .follow = 0.7};
}

Result<Dataset> load_dataset(FileSystem& fs, const std::string& dataset, const std::string& data_dir,
                             const ReadOptions& options, const std::function<void()>& on_progress) {
  if (dataset == kGeneratedDataset) {
    return parse_interactions(synthetic_ratings(generated_dataset_options()), dataset, options, on_progress);
  }
  TRY_ASSIGN(const std::string path, resolve_dataset(dataset, data_dir));
  return read_interactions(fs, path, options, on_progress);
}

Result<DatasetChoice> choose_dataset(FileSystem& fs, const std::string& data_dir) {
  std::string folder = data_dir.empty() ? "." : data_dir;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  TRY_ASSIGN(const Listing listing, list_folder(folder));
  if (listing.names.empty()) return generated_instead(folder);
  std::vector<std::string> readable;
  for (const std::string& path : listing.candidates) {
    if (has_known_format(fs, path)) readable.push_back(path);
  }
  if (readable.size() == 1) return DatasetChoice{readable.front(), ""};
  // If there is only one candidate and its format is unknown, reading it reports what is wrong.
  if (readable.empty() && listing.candidates.size() == 1) return DatasetChoice{listing.candidates.front(), ""};
  if (readable.size() > 1) {
    return Error{ErrorCode::kConflict, "--dataset auto: " + std::to_string(readable.size()) + " data sets in " +
                                           folder + " (" + first_of(readable, kNamesShown) +
                                           "): say which with --dataset PATH"};
  }
  return Error{ErrorCode::kNotFound, "--dataset auto: no data set among what is in " + folder + " (" +
                                         first_of(listing.names, kNamesShown) + "): expected " + kWhatIsLookedFor +
                                         "; give --dataset PATH, or --dataset generated to train without"};
}

std::string dataset_name(const std::string& name_or_path) {
  std::string path = name_or_path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  std::string base = slash == std::string::npos ? path : path.substr(slash + 1);
  // MovieLens' files are named after their folder.
  const bool is_movielens = base == "ratings.dat" || base == "ratings.csv" || base == "u.data";
  if (is_movielens && slash != std::string::npos && slash > 0) return dataset_name(path.substr(0, slash));
  if (base.ends_with(".gz") && base.size() > 3) base.resize(base.size() - 3);
  for (const std::string_view extension : {".txt", ".inter", ".dat", ".tsv", ".csv", ".zip"}) {
    if (base.size() > extension.size() && base.ends_with(extension)) {
      return base.substr(0, base.size() - extension.size());
    }
  }
  return base;
}

}  // namespace lockstep
