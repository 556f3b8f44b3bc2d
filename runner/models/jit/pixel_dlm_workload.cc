#include "runner/models/jit/pixel_dlm_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/philox.h"
#include "runner/models/jit/data/token_images.h"
#include "runner/models/jit/image_batch.h"
#include "runner/models/prepare_options.h"

namespace lockstep {
namespace {

constexpr uint32_t kTimes = 1000;

PixelDlmShape pixel_dlm_shape(const JitOptions& options) {
  return {.image_size = options.image_size,
          .patch_size = options.model.patch_size,
          .depth = options.model.depth,
          .hidden_dim = options.model.hidden_dim,
          .num_heads = options.model.num_heads};
}

// The number of pixels that hold a token, which are those that are not white.
int64_t tokens_in(std::span<const uint8_t> pixels) {
  int64_t tokens = 0;
  for (size_t i = 0; i + 2 < pixels.size(); i += 3) {
    const bool is_white = pixels[i] == kPaddingByte && pixels[i + 1] == kPaddingByte && pixels[i + 2] == kPaddingByte;
    tokens += is_white ? 0 : 1;
  }
  return tokens;
}

}  // namespace

at::Tensor token_loss(const at::Tensor& predicted_BCHH, const at::Tensor& image_BCHH, const at::Tensor& is_token_BHH) {
  return ((predicted_BCHH.clamp(0.0, 1.0) - image_BCHH).square() * is_token_BHH.unsqueeze(1)).sum();
}

Result<std::unique_ptr<PixelDlmWorkload>> PixelDlmWorkload::create(const RunConfig& config, PreparedImages pictures,
                                                                   const std::string& tokenizer, at::Device device) {
  if (pictures.cache.size() == 0) {
    return Error{ErrorCode::kInvalid, options_of<JitOptions>(config).data_path + " has no text to train on"};
  }
  const JitOptions& options = options_of<JitOptions>(config);
  const int64_t needed = tokens_of_first_patch(options);
  bool is_any_long_enough = false;
  for (int64_t i = 0; i < pictures.cache.size() && !is_any_long_enough; ++i) {
    TRY_ASSIGN(const std::span<const uint8_t> pixels, pictures.cache.pixels(i));
    is_any_long_enough = tokens_in(pixels) >= needed;
  }
  if (!is_any_long_enough) {
    return Error{ErrorCode::kInvalid,
                 options.data_path + ": each of its " + std::to_string(pictures.cache.size()) +
                     " texts has fewer tokens than the " + std::to_string(needed) +
                     " from which on a patch is predicted, so that nothing would be learnt; give longer texts (a line "
                     "of a .txt file is one), a smaller --img_size, or a --model of smaller patches"};
  }
  return std::unique_ptr<PixelDlmWorkload>(new PixelDlmWorkload(config, std::move(pictures), tokenizer, device));
}

PixelDlmWorkload::PixelDlmWorkload(const RunConfig& config, PreparedImages pictures, std::string tokenizer,
                                   at::Device device)
    : ImageWorkload(config, std::move(pictures), device),
      tokenizer_(std::move(tokenizer)),
      model_(pixel_dlm_shape(options_), device) {}

std::vector<ParameterGroup> PixelDlmWorkload::groups() const {
  return {{.name = "", .parameters = model_.trained(), .weight_decay = std::nullopt}};
}

std::vector<std::pair<std::string, std::string>> PixelDlmWorkload::describe() const {
  const int64_t side = options_.image_size;
  const int64_t patch = options_.model.patch_size;
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", options_.model.name + " for tokens: " + std::to_string(side / patch * (side / patch)) + " patches of " +
                    std::to_string(patch) + " x " + std::to_string(patch) + " pixels, " +
                    std::to_string(count_elements(model_.parameters())) + " parameters"},
      {"data", images_.summary},
      {"tokenizer", tokenizer_},
      {"texts", std::to_string(split_.num_train()) + " train, " + std::to_string(split_.num_valid()) +
                    " validate, each a picture of " + std::to_string(side) + " x " + std::to_string(side) +
                    " tokens at most"}};
  const auto left_out = rows_of_left_out(images_, training_.verbose);
  rows.insert(rows.end(), left_out.begin(), left_out.end());
  return rows;
}

Result<HostBatch> PixelDlmWorkload::fetch(const BatchShare& share) const {
  const bool is_pinned = !device_.is_cpu();
  const std::vector<int64_t> numbers = split_.images_of(share.samples);
  const int64_t epoch = split_.epoch_of_draws(share);
  TRY_ASSIGN(const ImageBatch pictures,
             image_batch(images_.cache, numbers, {.seed = share.seed, .epoch = epoch}, is_pinned));
  const at::Tensor t_B = at::empty({std::ssize(numbers)}, at::TensorOptions(at::kLong).pinned_memory(is_pinned));
  int64_t tokens = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    TRY_ASSIGN(const std::span<const uint8_t> pixels, images_.cache.pixels(numbers[i]));
    tokens += tokens_in(pixels);
    const PhiloxStream stream{share.seed, static_cast<uint32_t>(RandomPurpose::kDiffusion),
                              static_cast<uint32_t>(epoch), static_cast<uint32_t>(numbers[i])};
    t_B.mutable_data_ptr<int64_t>()[i] = stream.below(0, kTimes);
  }
  return HostBatch{
      .tensors = {{"pixels_BHHC", pictures.pixels_BHHC}, {"t_B", t_B}, {"noise_BCHH", pictures.noise_BCHH}},
      .weights = {static_cast<double>(tokens)}};
}

std::vector<at::Tensor> PixelDlmWorkload::loss(const DeviceBatch& batch) {
  const at::Tensor& pixels_BHHC = batch["pixels_BHHC"];
  const at::Tensor is_token_BHH = (pixels_BHHC != kPaddingByte).any(3);
  // Black where there is no token, as in the guide.
  const at::Tensor image_BCHH = (pixels_BHHC.to(at::kFloat) / 255.0 * is_token_BHH.unsqueeze(3)).permute({0, 3, 1, 2});
  const at::Tensor t_B = batch["t_B"];
  const at::Tensor alpha_B111 = (1.0 - t_B.to(at::kFloat) / static_cast<double>(kTimes)).view({-1, 1, 1, 1});
  const at::Tensor z_BCHH = alpha_B111 * image_BCHH + (1.0 - alpha_B111) * batch["noise_BCHH"];
  return {token_loss(model_(z_BCHH, t_B, is_token_BHH).to(at::kFloat), image_BCHH, is_token_BHH)};
}

WorkloadOrFailure make_pixel_dlm(FileSystem& fs, const RunConfig& config, at::Device device,
                                 const OnDataProgress& on_progress) {
  const JitOptions& options = options_of<JitOptions>(config);
  const std::string& folder = options.tokenizer_path;
  Result<BytePairEncoding> tokenizer =
      folder.empty() ? BytePairEncoding::of_bytes() : BytePairEncoding::load(fs, folder);
  if (!tokenizer.ok()) return data_failure("--tokenizer_path: " + tokenizer.error().message);
  const std::string tokenizer_text =
      folder.empty() ? "bytes (no --tokenizer_path)" : folder + ", " + std::to_string(tokenizer->size()) + " tokens";
  const int64_t tokens_max = options.max_tokens.value_or(options.image_size * options.image_size);
  Result<std::unique_ptr<ImageSource>> source = find_token_images(fs, options.data_path, options.image_size, tokens_max,
                                                                  std::move(*tokenizer), [&] { on_progress(0, 0); });
  if (!source.ok()) return data_failure(source.error().message);
  Result<PreparedImages> prepared =
      prepare_images(fs, **source, cache_folder(options.cache_dir, options.data_path), prepare_options(on_progress));
  if (!prepared.ok()) return data_failure(prepared.error().message);
  return workload_or_failure(PixelDlmWorkload::create(config, std::move(*prepared), tokenizer_text, device));
}

}  // namespace lockstep
