#include "runner/models/jit/sample_task.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/mutex.h"
#include "runner/checkpoint/reader.h"
#include "runner/config/flag_table_builder.h"
#include "runner/models/jit/data/image_file.h"
#include "runner/models/jit/data/image_source.h"
#include "runner/models/jit/data/prepare_images.h"
#include "runner/models/jit/frechet_distance.h"
#include "runner/models/jit/image_batch.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/jit/jit_sampling.h"
#include "runner/models/jit/jit_workload.h"
#include "runner/models/jit/sample_flags.h"

namespace lockstep {
namespace {

// Whether a number can only be the name of a class: where folders are called 1, 2 and 4, class 1 is the folder 1.
bool has_numbers_as_names(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    int64_t number = 0;
    return parse_whole(name, number);
  });
}

Error invalid_class(const std::string& name, int64_t num_classes, const std::vector<std::string>& names) {
  const std::string first = has_numbers_as_names(names) ? "" : "a number from 0 to " + std::to_string(num_classes - 1);
  std::string known = first;
  for (size_t i = 0; i < names.size(); ++i) {
    known += (i > 0 ? ", " : first.empty() ? "the name of a class: " : ", or one of ") + names[i];
  }
  return Error{ErrorCode::kInvalid, "--classes: found \"" + name + "\", expected " + known};
}

// By class number; empty if the checkpoint does not name them. progress: "progress" of its state.json.
std::vector<std::string> classes_trained_on(const Json& progress) {
  std::vector<std::string> names;
  for (const Json& name : progress.value("workload", Json::object()).value(kClassesField, Json::array())) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

// Parses "2,cat" into class numbers; an empty text means all classes. Where a class is named by a number, numbers are
// names alone.
Result<std::vector<int64_t>> classes_of(const std::string& text, int64_t num_classes,
                                        const std::vector<std::string>& names) {
  std::vector<int64_t> classes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    begin = end + 1;
    const auto found = std::find(names.begin(), names.end(), name);
    int64_t number = found - names.begin();
    if (found == names.end() && (has_numbers_as_names(names) || !parse_whole(name, number))) {
      return invalid_class(name, num_classes, names);
    }
    if (number < 0 || number >= num_classes) return invalid_class(name, num_classes, names);
    classes.push_back(number);
  }
  if (classes.empty()) {
    classes.resize(static_cast<size_t>(num_classes));
    std::iota(classes.begin(), classes.end(), int64_t{0});
  }
  return classes;
}

// The number of classes: the embedding table has one row for each, and one more for "no class".
int64_t classes_in(const NamedTensors& weights) {
  for (const NamedTensor& tensor : weights) {
    if (tensor.name == "net.y_embedder.embedding_table.weight" && tensor.tensor.dim() == 2) {
      return std::max<int64_t>(tensor.tensor.size(0) - 1, 1);
    }
  }
  return 1;
}

constexpr int64_t kSheetImagesMax = 1024;
constexpr int64_t kImagesAtOnce = 256;  // batch size for the features of the reference images

Status write_images(FileSystem& fs, const std::string& folder, int64_t first, const at::Tensor& pixels_BHHC) {
  for (int64_t i = 0; i < pixels_BHHC.size(0); ++i) {
    char name[32];
    std::snprintf(name, sizeof name, "%06lld.png", static_cast<long long>(first + i));
    TRY(write_file_atomically(fs, join_path(folder, name), png_of(pixels_BHHC[i])));
  }
  return {};
}

// Computes simple_features, or those of the network of --fid_features.
class Features {
 public:
  static Result<Features> make(const std::string& path, at::Device device) {
    Features features;
    if (path.empty()) return features;
    TRY_ASSIGN(FeatureNetwork network, FeatureNetwork::load(path, device));
    features.network_ = std::move(network);
    return features;
  }
  Result<at::Tensor> operator()(const at::Tensor& pixels_BHHC) {
    if (network_) return (*network_)(pixels_BHHC);
    return simple_features(pixels_BHHC);
  }

 private:
  std::optional<FeatureNetwork> network_;
};

// The statistics that the samples are compared with.
struct Reference {
  FeatureStatistics statistics;
  std::string what;  // for messages, for example "3786 images of /data/emoji"
};

Result<Reference> reference_of(FileSystem& fs, const RunConfig& config, at::Device device) {
  const SampleOptions& options = options_of<SampleOptions>(config);
  if (!options.fid_stats.empty()) {
    TRY_ASSIGN(FeatureStatistics statistics, read_feature_statistics(fs, options.fid_stats));
    return Reference{.statistics = std::move(statistics), .what = "the statistics in " + options.fid_stats};
  }
  const JitOptions& jit = options_of<JitOptions>(config);
  TRY_ASSIGN(const PreparedImages prepared,
             prepare_images(fs, jit.data_path, jit.image_size, cache_folder(jit.cache_dir, jit.data_path), {}));
  const ImageCache& cache = prepared.cache;
  if (cache.size() < 2) {
    return Error{ErrorCode::kInvalid, "--data_path " + jit.data_path + " has " + std::to_string(cache.size()) +
                                          " images; a distance needs at least 2"};
  }
  TRY_ASSIGN(Features features, Features::make(options.fid_features, device));
  FeatureSums sums;
  for (int64_t first = 0; first < cache.size(); first += kImagesAtOnce) {
    const int64_t count = std::min(kImagesAtOnce, cache.size() - first);
    const at::Tensor pixels_BHHC = at::empty({count, jit.image_size, jit.image_size, kChannels}, at::kByte);
    for (int64_t i = 0; i < count; ++i) {
      TRY_ASSIGN(const std::span<const uint8_t> pixels, cache.pixels(first + i));
      std::copy(pixels.begin(), pixels.end(), pixels_BHHC[i].mutable_data_ptr<uint8_t>());
    }
    TRY_ASSIGN(const at::Tensor values_BF, features(pixels_BHHC));
    sums.add(values_BF);
  }
  return Reference{.statistics = statistics_of(sums),
                   .what = std::to_string(cache.size()) + " images of " + jit.data_path};
}

// Samples the images of a run, sharded over ranks; each rank is a thread with its own copy of the model.
class Sampling {
 public:
  // reference: what the images will be compared with; null: nothing.
  Sampling(const TaskInput& input, std::vector<int64_t> classes, int64_t num_classes, const Reference* reference)
      : input_(input),
        jit_(options_of<JitOptions>(input.config)),
        options_(options_of<SampleOptions>(input.config)),
        classes_(std::move(classes)),
        num_classes_(num_classes),
        reference_(reference),
        sheet_pixels_(static_cast<size_t>(std::min(options_.count, kSheetImagesMax))) {}

  // Errors: that of the lowest rank that failed.
  Status run(FileSystem& fs) {
    const int64_t ranks = std::min(options_.nproc, options_.count);
    // The ranks share the cores.
    at::set_num_threads(static_cast<int>(std::max<int64_t>(1, at::get_num_threads() / ranks)));
    std::vector<Status> ended(static_cast<size_t>(ranks));
    std::vector<FeatureSums> sums(static_cast<size_t>(ranks));
    std::vector<std::exception_ptr> thrown(static_cast<size_t>(ranks));
    {
      std::vector<std::jthread> threads;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          const auto at = static_cast<size_t>(rank);
          try {
            ended[at] = run_rank(fs, options_.count * rank / ranks, options_.count * (rank + 1) / ranks,
                                 device_of(rank), sums[at]);
          } catch (...) {
            thrown[at] = std::current_exception();
          }
          if (thrown[at] || !ended[at].ok()) has_failed_ = true;
        });
      }
    }
    for (const std::exception_ptr& exception : thrown) {
      if (exception) std::rethrow_exception(exception);
    }
    for (const Status& status : ended) TRY(Status(status));
    for (const FeatureSums& part : sums) sums_.add(part);
    return {};
  }

  [[nodiscard]] const FeatureSums& sums() const { return sums_; }
  [[nodiscard]] std::string sheet() const { return contact_sheet_png(torch::stack(sheet_pixels_)); }

 private:
  [[nodiscard]] at::Device device_of(int64_t rank) const {
    if (input_.device.is_cpu()) return input_.device;
    const int64_t gpus = torch::cuda::device_count();
    return {input_.device.type(), static_cast<c10::DeviceIndex>((input_.device.index() + rank) % gpus)};
  }

  // Makes the images in [begin, end). An image depends only on its number and the seed.
  Status run_rank(FileSystem& fs, int64_t begin, int64_t end, at::Device device, FeatureSums& sums) {
    const c10::DeviceGuard guard(device);
    JitModel model(jit_shape(jit_, num_classes_), device);
    TRY(copy_tensors(input_.weights, model.parameters(), input_.weights_path));
    std::optional<Features> features;
    if (reference_ != nullptr) {
      TRY_ASSIGN(features, Features::make(options_.fid_features, device));
    }
    for (int64_t first = begin; first < end && !has_failed_; first += options_.batch_size) {
      std::vector<int64_t> numbers;
      for (int64_t i = first; i < std::min(first + options_.batch_size, end); ++i) {
        numbers.push_back(classes_[static_cast<size_t>(i % std::ssize(classes_))]);
      }
      const at::Tensor pixels_BHHC = sampled_pixels(model, options_.seed, first, numbers,
                                                    {.steps = options_.steps,
                                                     .guidance = num_classes_ > 1 ? options_.guidance : 1.0,
                                                     .t_eps = jit_.t_eps,
                                                     .noise_scale = jit_.noise_scale,
                                                     .goes_on = [&] { return !has_failed_; }});
      if (!pixels_BHHC.defined()) return {};  // another rank failed and returns the error
      if (features) {
        TRY_ASSIGN(const at::Tensor values_BF, (*features)(pixels_BHHC));
        TRY(check_features(values_BF.size(1)));
        sums.add(values_BF);
      }
      if (!options_.folder.empty()) TRY(write_images(fs, options_.folder, first, pixels_BHHC));
      for (int64_t i = 0; i < pixels_BHHC.size(0) && first + i < std::ssize(sheet_pixels_); ++i) {
        sheet_pixels_[static_cast<size_t>(first + i)] = pixels_BHHC[i];
      }
      const MutexLock lock(mutex_);
      done_ += pixels_BHHC.size(0);
      input_.log(std::to_string(done_) + " of " + std::to_string(options_.count) + " images");
    }
    return {};
  }

  // Checked with the first images, so that statistics of another network do not cost the time of all of them.
  [[nodiscard]] Status check_features(int64_t made) const {
    const int64_t expected = reference_->statistics.mean_F.size(0);
    if (made == expected) return {};
    return Error{ErrorCode::kInvalid, "--fid_features " + options_.fid_features + " makes " + std::to_string(made) +
                                          " features, --fid_stats " + options_.fid_stats + " is of " +
                                          std::to_string(expected) +
                                          ": give the statistics that belong to the network"};
  }

  const TaskInput& input_;
  const JitOptions& jit_;
  const SampleOptions& options_;
  std::vector<int64_t> classes_;
  int64_t num_classes_;
  const Reference* reference_;
  std::vector<at::Tensor> sheet_pixels_;  // per image: [H, H, C]; each is written by one rank
  FeatureSums sums_;
  std::atomic<bool> has_failed_ = false;
  Mutex mutex_;  // also for calls of input_.log
  int64_t done_ GUARDED_BY(mutex_) = 0;
};

// Computes the distance, adds it to `result` and logs it.
void compare(const TaskInput& input, const FeatureSums& sums, const Reference& reference, OrderedJson& result) {
  const SampleOptions& options = options_of<SampleOptions>(input.config);
  const double distance = frechet_distance(statistics_of(sums), reference.statistics);
  const bool is_simple = options.fid_features.empty();
  const std::string features = is_simple ? "simple features (no FID)" : "features of " + options.fid_features;
  result[is_simple ? "distance_on_simple_features" : "frechet_distance"] = distance;
  result["features"] = is_simple ? "simple" : options.fid_features;
  result["compared_with"] = reference.what;
  char number[32];
  std::snprintf(number, sizeof number, "%.6g", distance);
  input.log("Frechet distance on " + features + ": " + number + ", of " + std::to_string(sums.count) + " images to " +
            reference.what);
}

// Makes the folders of the results before the images, so that a wrong path does not cost the time of making them.
Status make_folders(FileSystem& fs, const SampleOptions& options) {
  const auto make = [&](const std::string& flag, const std::string& folder) -> Status {
    const Status made = make_directories(fs, folder);
    if (made.ok()) return {};
    return Error{made.error().code, flag + ": " + made.error().message};
  };
  if (!options.folder.empty()) TRY(make("--folder " + options.folder, options.folder));
  if (!options.grid.empty()) TRY(make("--grid " + options.grid, parent_path(options.grid)));
  return {};
}

}  // namespace

std::optional<Failure> sample_jit(const TaskInput& input) {
  const JitOptions& jit = options_of<JitOptions>(input.config);
  if (jit.data_format == JitData::kTokens) {
    return usage_failure("lockstep jit sample makes images, and " + input.config.task.checkpoint +
                         " is of --data_format tokens: give a checkpoint of --data_format images");
  }
  const SampleOptions& options = options_of<SampleOptions>(input.config);
  const int64_t num_classes = classes_in(input.weights);
  const JitModel shapes(jit_shape(jit, num_classes), at::kCPU);
  const Status fits = copy_tensors(input.weights, shapes.parameters(), input.weights_path);
  if (!fits.ok()) return usage_failure(fits.error().message);

  FileSystem& fs = input.fs;
  std::vector<std::string> names = classes_trained_on(input.progress);
  if (names.empty() && !options.classes.empty()) {  // of an older checkpoint, or a weights file
    if (const auto source = find_images(fs, jit.data_path, jit.image_size); source.ok()) names = (*source)->classes();
  }
  if (std::ssize(names) != num_classes) names.clear();
  const Result<std::vector<int64_t>> classes = classes_of(options.classes, num_classes, names);
  if (!classes.ok()) return usage_failure(classes.error().message);

  if (num_classes == 1 && options.guidance != 1.0 && is_given(input.config, "cfg")) {
    input.log(
        "--cfg changes nothing: guidance strengthens what the class changes in an image, and this model knows only one "
        "class");
  }

  const Status made = make_folders(fs, options);
  if (!made.ok()) return failure_of(made.error(), ExitCode::kCheckpoint);
  std::optional<Reference> reference;
  if (options.wants_distance()) {
    Result<Reference> found = reference_of(fs, input.config, input.device);
    if (!found.ok()) return failure_of(found.error(), ExitCode::kData);
    reference = std::move(*found);
  }
  Sampling sampling(input, *classes, num_classes, reference ? &*reference : nullptr);
  const Status sampled = sampling.run(fs);
  if (!sampled.ok()) return failure_of(sampled.error(), ExitCode::kCheckpoint);

  if (!options.grid.empty()) {
    const Status written = write_file_atomically(fs, options.grid, sampling.sheet());
    if (!written.ok()) return Failure{ExitCode::kCheckpoint, "--grid " + options.grid + ": " + written.error().message};
  }
  OrderedJson result = {{"images", options.count}};
  if (reference) compare(input, sampling.sums(), *reference, result);
  if (!options.grid.empty()) result["grid"] = options.grid;
  if (!options.folder.empty()) result["folder"] = options.folder;
  const std::string line = dump_line(result) + "\n";
  const Status written = input.out(line.data(), line.size());
  if (!written.ok()) return failure_of(written.error(), ExitCode::kCheckpoint);
  return std::nullopt;
}

}  // namespace lockstep
