#include "runner/models/jit/jit_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/one_line.h"
#include "runner/base/philox.h"
#include "runner/contract/run_folder_layout.h"
#include "runner/data/sampler.h"
#include "runner/layers/initial_values.h"
#include "runner/models/guide_files.h"
#include "runner/models/jit/data/data_format.h"
#include "runner/models/jit/data/image_file.h"
#include "runner/models/jit/image_batch.h"
#include "runner/models/jit/jit_sampling.h"
#include "runner/models/jit/pixel_dlm_workload.h"
#include "runner/models/prepare_options.h"

namespace lockstep {
namespace {

constexpr char kSheetFile[] = "samples.png";
constexpr char kSamplesPart[] = "samples";  // the part of an evaluation that holds the samples' pixels
constexpr char kPosEmbed[] = "net.pos_embed";
constexpr double kWordsOfPhilox = 4294967296.0;

// The random numbers of an image, apart from its noise.
struct ImageDraws {
  double normal = 0.0;  // standard normal, for its time
  bool is_mirrored = false;
  double class_draw = 0.0;  // uniform in [0, 1); below class_dropout, the image is shown without its class
};
ImageDraws draws_of(uint64_t seed, int64_t epoch, int64_t image) {
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPurpose::kDiffusion), static_cast<uint32_t>(epoch),
                            static_cast<uint32_t>(image)};
  float normals[4];
  normals_of(stream.block(0), 1.0, normals);
  const Philox4 words = stream.block(1);
  return {.normal = normals[0],
          .is_mirrored = (words.x[0] & 1U) != 0,
          .class_draw = static_cast<double>(words.x[1]) / kWordsOfPhilox};
}

std::string class_names(const std::vector<std::string>& classes) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, classes.size()); ++i) text += (i == 0 ? "" : ", ") + classes[i];
  return text + (classes.size() > kShown ? ", …" : "");
}

static_assert(kSheetBytesMax <= static_cast<int64_t>(kPartBytesMax));

}  // namespace

JitShape jit_shape(const JitOptions& options, int64_t num_classes) {
  return {.image_size = options.image_size,
          .patch_size = options.model.patch_size,
          .num_classes = num_classes,
          .depth = options.model.depth,
          .hidden_dim = options.model.hidden_dim,
          .num_heads = options.model.num_heads,
          .bottleneck = options.model.bottleneck,
          .in_context_start = options.model.in_context_start};
}

Result<std::unique_ptr<JitWorkload>> JitWorkload::create(const RunConfig& config, PreparedImages images,
                                                         at::Device device) {
  if (images.cache.size() == 0) {
    return Error{ErrorCode::kInvalid, options_of<JitOptions>(config).data_path + " has no image to train on"};
  }
  return std::unique_ptr<JitWorkload>(new JitWorkload(config, std::move(images), device));
}

JitWorkload::JitWorkload(const RunConfig& config, PreparedImages images, at::Device device)
    : ImageWorkload(config, std::move(images), device),
      model_(jit_shape(options_, std::max<int64_t>(1, static_cast<int64_t>(images_.cache.classes().size()))), device) {}

std::vector<ParameterGroup> JitWorkload::groups() const {
  ParameterGroup decay{.name = "decay", .parameters = {}, .weight_decay = std::nullopt};
  ParameterGroup no_decay{.name = "no_decay", .parameters = {}, .weight_decay = 0.0};
  for (const NamedTensor& parameter : model_.parameters()) {
    (parameter.tensor.dim() == 1 ? no_decay : decay).parameters.push_back(parameter);
  }
  return {decay, no_decay};
}

Json JitWorkload::progress_state() const {
  Json state = ImageWorkload::progress_state();
  state[kClassesField] = images_.cache.classes();
  return state;
}

Status JitWorkload::restore_progress(const Json& state) {
  const auto classes = state.find(kClassesField);  // older checkpoints do not have it
  if (classes != state.end() && *classes != Json(images_.cache.classes())) {
    return Error{ErrorCode::kInvalid,
                 "it was trained on other classes, " + one_line(dump_line(*classes)) + ", than " + options_.data_path +
                     " has, " + one_line(dump_line(Json(images_.cache.classes()))) +
                     "; give the folder that it was trained on, or its weights alone as --state_dict_path"};
  }
  return ImageWorkload::restore_progress(state);
}

std::vector<std::pair<std::string, std::string>> JitWorkload::describe() const {
  const ImageCache& cache = images_.cache;
  const int64_t tokens = model_.shape().grid() * model_.shape().grid();
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", options_.model.name + ": " + std::to_string(tokens) + " patches of " +
                    std::to_string(options_.model.patch_size) + " x " + std::to_string(options_.model.patch_size) +
                    " pixels, " + std::to_string(count_elements(model_.parameters())) + " parameters"},
      {"data", images_.summary},
      {"images", std::to_string(split_.num_train()) + " train, " + std::to_string(split_.num_valid()) + " validate, " +
                     std::to_string(cache.side()) + " x " + std::to_string(cache.side()) + " pixels"},
      {"classes", cache.classes().empty()
                      ? std::string("none")
                      : std::to_string(cache.classes().size()) + ": " + class_names(cache.classes())}};
  const auto left_out = rows_of_left_out(images_, training_.verbose);
  rows.insert(rows.end(), left_out.begin(), left_out.end());
  return rows;
}

Result<HostBatch> JitWorkload::fetch(const BatchShare& share) const {
  const bool is_pinned = !device_.is_cpu();
  const bool trains = share.split == Split::kTrain;
  const int64_t epoch = split_.epoch_of_draws(share);
  TRY_ASSIGN(const ImageBatch images, image_batch(images_.cache, split_.images_of(share.samples),
                                                  {.seed = share.seed, .epoch = epoch}, is_pinned));
  const auto b = static_cast<int64_t>(share.samples.size());
  const auto of_type = [&](at::ScalarType type) { return at::TensorOptions(type).pinned_memory(is_pinned); };
  const at::Tensor is_mirrored_B = at::zeros({b}, of_type(at::kBool));
  const at::Tensor classes_B = at::empty({b}, of_type(at::kLong));
  const at::Tensor t_B = at::empty({b}, of_type(at::kFloat));
  for (int64_t i = 0; i < b; ++i) {
    const int64_t sample = share.samples[static_cast<size_t>(i)];
    const int64_t image = split_.image_of(sample);
    const ImageDraws draws = draws_of(share.seed, epoch, image);
    is_mirrored_B.mutable_data_ptr<bool>()[i] = trains && options_.flip && draws.is_mirrored;
    const bool has_class = !trains || draws.class_draw >= options_.class_dropout;
    classes_B.mutable_data_ptr<int64_t>()[i] = has_class ? images_.cache.label(image) : model_.shape().num_classes;
    const double logit = options_.t_mean + options_.t_deviation * draws.normal;
    t_B.mutable_data_ptr<float>()[i] = static_cast<float>(1.0 / (1.0 + std::exp(-logit)));
  }
  return HostBatch{.tensors = {{"pixels_BHHC", images.pixels_BHHC},
                               {"is_mirrored_B", is_mirrored_B},
                               {"classes_B", classes_B},
                               {"t_B", t_B},
                               {"noise_BCHH", images.noise_BCHH}},
                   .weights = {static_cast<double>(b)}};
}

std::vector<at::Tensor> JitWorkload::loss(const DeviceBatch& batch) {
  const at::Tensor x_BCHH = batch["pixels_BHHC"].permute({0, 3, 1, 2}).to(at::kFloat) / 127.5 - 1.0;
  const at::Tensor image_BCHH = at::where(batch["is_mirrored_B"].view({-1, 1, 1, 1}), x_BCHH.flip(3), x_BCHH);
  const at::Tensor t_B111 = batch["t_B"].view({-1, 1, 1, 1});
  const at::Tensor z_BCHH = t_B111 * image_BCHH + (1.0 - t_B111) * options_.noise_scale * batch["noise_BCHH"];
  Dropouts dropouts;
  if (batch.is_training) {
    const BatchShare& share = batch.share;
    dropouts = Dropouts(options_.dropout,
                        {.seed = share.seed, .step = share.step, .first_slot = share.first_slot, .layer = 0});
  }
  const at::Tensor predicted_BCHH = model_(z_BCHH, batch["t_B"], batch["classes_B"], dropouts).to(at::kFloat);
  // v = (x − z) / (1 − t): the z of the predicted and the true velocity cancel in their difference.
  const at::Tensor difference_BCHH = (predicted_BCHH - image_BCHH) / (1.0 - t_B111).clamp_min(options_.t_eps);
  return {difference_BCHH.square().flatten(1).mean(1).sum()};
}

// Each rank makes a part of the samples.
Result<std::vector<MetricSum>> JitWorkload::evaluate(const EvaluationShard& shard) {
  TRY_ASSIGN(std::vector<MetricSum> sums, Workload::evaluate(shard));
  if (options_.sample_images == 0) return sums;
  const SlotRange mine = share_of(shard.rank, shard.world_size, options_.sample_images);
  const int64_t num_classes = model_.shape().num_classes;
  const JitSampling sampling{.steps = options_.sample_steps,
                             .guidance = num_classes > 1 ? options_.guidance : 1.0,
                             .t_eps = options_.t_eps,
                             .noise_scale = options_.noise_scale,
                             .goes_on = shard.goes_on};
  std::string bytes;
  for (int64_t first = mine.begin; first < mine.end; first += shard.samples_at_once) {
    std::vector<int64_t> classes;
    for (int64_t i = first; i < std::min(first + shard.samples_at_once, mine.end); ++i) {
      classes.push_back(i % num_classes);
    }
    const at::Tensor pixels_BHHC = sampled_pixels(model_, training_.seed, first, classes, sampling);
    if (!pixels_BHHC.defined()) return sums;  // stopped: the result is discarded
    bytes.append(static_cast<const char*>(pixels_BHHC.data_ptr()), pixels_BHHC.nbytes());
  }
  shard.give_part(kSamplesPart, std::move(bytes));
  return sums;
}

std::vector<std::string> JitWorkload::outputs(const EvaluationReport& report) {
  std::vector<std::string> files = ImageWorkload::outputs(report);
  if (options_.sample_images > 0) files.push_back(output_path({.step = report.step, .name = kSheetFile}));
  return files;
}

Result<NamedTensors> JitWorkload::weights_of_file(NamedTensors file) const {
  std::erase_if(file, [](const NamedTensor& tensor) { return tensor.name == kPosEmbed; });
  return file;
}

OutputContent JitWorkload::output(const std::string& name, const OutputState& state) const {
  if (is_guide_file(name)) {
    OutputState published = state;  // with all names that the published code expects
    published.model.push_back({kPosEmbed, model_.pos_embed()});
    return guide_file(model_.parameters(), published);
  }
  const int64_t count = options_.sample_images;
  const auto part = state.parts.find(kSamplesPart);
  if (part == state.parts.end())
    return std::string();  // to make them again would take minutes; the next sheet will come
  at::Tensor pixels_NHHC = at::empty({count, options_.image_size, options_.image_size, kChannels}, at::kByte);
  LOCKSTEP_CHECK(part->second.size() == pixels_NHHC.nbytes(), "the ranks have made all samples");
  std::copy(part->second.begin(), part->second.end(), static_cast<char*>(pixels_NHHC.mutable_data_ptr()));
  return contact_sheet_png(pixels_NHHC);
}

WorkloadOrFailure make_jit(FileSystem& fs, const RunConfig& config, at::Device device,
                           const OnDataProgress& on_progress) {
  const JitOptions& options = options_of<JitOptions>(config);
  const bool is_tokens = options.data_format == JitData::kTokens;
  const Status fits = check_format(is_tokens ? DataFormat::kTokens : DataFormat::kImages,
                                   count_files(options.data_path), options.data_path);
  if (!fits.ok()) return data_failure(fits.error().message);
  if (is_tokens) return make_pixel_dlm(fs, config, device, on_progress);
  Result<PreparedImages> prepared =
      prepare_images(fs, options.data_path, options.image_size, cache_folder(options.cache_dir, options.data_path),
                     prepare_options(on_progress));
  if (!prepared.ok()) return data_failure(prepared.error().message);
  return workload_or_failure(JitWorkload::create(config, std::move(*prepared), device));
}

}  // namespace lockstep
