#include "runner/models/jit/sample_task.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/config/flag_table_builder.h"
#include "runner/data/images/image_file.h"
#include "runner/data/images/image_source.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/jit/jit_sampling.h"
#include "runner/models/jit/jit_workload.h"
#include "runner/models/jit/sample_flags.h"

namespace lockstep {
namespace {

Error invalid_class(const std::string& name, int64_t num_classes, const std::vector<std::string>& names) {
  std::string known = "a number from 0 to " + std::to_string(num_classes - 1);
  for (size_t i = 0; i < names.size(); ++i) known += (i == 0 ? ", or one of " : ", ") + names[i];
  return Error{ErrorCode::kInvalid, "--classes: found " + name + ", expected " + known};
}

// "2,cat" → numbers. Empty: all.
Result<std::vector<int64_t>> classes_of(const std::string& text, int64_t num_classes,
                                        const std::vector<std::string>& names) {
  std::vector<int64_t> classes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    begin = end + 1;
    const auto found = std::find(names.begin(), names.end(), name);
    int64_t number = found - names.begin();
    if (found == names.end() && !parse_whole(name, number)) return invalid_class(name, num_classes, names);
    if (number < 0 || number >= num_classes) return invalid_class(name, num_classes, names);
    classes.push_back(number);
  }
  for (int64_t i = 0; classes.empty() && i < num_classes; ++i) classes.push_back(i);
  return classes;
}

std::string png_of(const at::Tensor& pixels_HWC) {
  const at::Tensor pixels = pixels_HWC.contiguous();
  return png_bytes({pixels.data_ptr<uint8_t>(), static_cast<size_t>(pixels.numel())}, pixels.size(1), pixels.size(0));
}

// One row for each class and one for "none".
int64_t classes_in(const NamedTensors& weights) {
  for (const NamedTensor& tensor : weights) {
    if (tensor.name == "net.y_embedder.embedding_table.weight" && tensor.tensor.dim() == 2) {
      return std::max<int64_t>(tensor.tensor.size(0) - 1, 1);
    }
  }
  return 1;
}

Status write_images(FileSystem& fs, const std::string& folder, int64_t first, const at::Tensor& pixels_BHHC) {
  TRY(make_directories(fs, folder));
  for (int64_t i = 0; i < pixels_BHHC.size(0); ++i) {
    char name[32];
    std::snprintf(name, sizeof name, "%06lld.png", static_cast<long long>(first + i));
    TRY(write_file_atomically(fs, join_path(folder, name), png_of(pixels_BHHC[i])));
  }
  return {};
}

}  // namespace

std::optional<Failure> sample_jit(const TaskInput& input) {
  const JitOptions& jit = jit_options(input.config);
  const SampleOptions& options = sample_options(input.config);
  const int64_t num_classes = classes_in(input.weights);
  JitModel model(jit_shape(jit, num_classes), input.device);
  const Status copied = copy_tensors(input.weights, model.parameters(), input.weights_path);
  if (!copied.ok()) return Failure{ExitCode::kUsage, copied.error().message};

  PosixFileSystem fs;
  std::vector<std::string> names;
  if (const auto source = find_images(fs, jit.data_path, jit.image_size); source.ok()) names = (*source)->classes();
  if (std::ssize(names) != num_classes) names.clear();
  const Result<std::vector<int64_t>> classes = classes_of(options.classes, num_classes, names);
  if (!classes.ok()) return Failure{ExitCode::kUsage, classes.error().message};

  std::vector<at::Tensor> pixels;
  for (int64_t first = 0; first < options.count; first += options.batch_size) {
    std::vector<at::Tensor> noise;
    std::vector<int64_t> numbers;
    for (int64_t i = first; i < std::min(first + options.batch_size, options.count); ++i) {
      noise.push_back(image_noise(options.seed, i, jit.image_size));
      numbers.push_back((*classes)[static_cast<size_t>(i % std::ssize(*classes))]);
    }
    const at::Tensor images = sample_images(model, torch::stack(noise).to(input.device),
                                            torch::tensor(numbers, torch::kLong).to(input.device),
                                            {.steps = options.steps,
                                             .guidance = num_classes > 1 ? options.guidance : 1.0,
                                             .t_eps = jit.t_eps,
                                             .noise_scale = jit.noise_scale});
    pixels.push_back(to_pixels(images).cpu());
    if (!options.folder.empty()) {
      const Status written = write_images(fs, options.folder, first, pixels.back());
      if (!written.ok()) return Failure{ExitCode::kCheckpoint, written.error().message};
    }
    input.log(std::to_string(std::min(first + options.batch_size, options.count)) + " of " +
              std::to_string(options.count) + " images");
  }
  const auto columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(options.count))));
  const std::string sheet = png_of(contact_sheet(torch::cat(pixels), columns));
  const Status written = input.out(sheet.data(), sheet.size());
  if (!written.ok()) return Failure{ExitCode::kCheckpoint, written.error().message};
  return std::nullopt;
}

}  // namespace lockstep
