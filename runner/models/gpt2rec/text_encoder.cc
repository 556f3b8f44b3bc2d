#include "runner/models/gpt2rec/text_encoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "runner/base/check.h"
#include "runner/base/sha256.h"
#include "runner/formats/tensor_file.h"
#include "runner/models/gpt2rec/gpt2_files.h"

namespace lockstep {
namespace {

// A random GPT-2 is a function of its size alone: the same in every run, whatever --seed, so that checkpoints and
// adapters of different runs fit it.
constexpr uint64_t kRandomWeightsSeed = 0x67707432;  // "gpt2"
constexpr int64_t kRandomContext = 1024;
constexpr int64_t kHeadWidth = 64;

std::string size_text(int64_t layers, int64_t width) { return std::to_string(layers) + "x" + std::to_string(width); }

std::string millions(double count) {
  std::array<char, 32> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), count < 1e5 ? "%.3f M" : "%.1f M", count / 1e6));
  return text.data();
}

// SHA-256 of names, shapes and fp32 values.
std::string digest_of(const NamedTensors& tensors) {
  Sha256 sha;
  for (const NamedTensor& tensor : tensors) {
    const std::string head = tensor.name + " " + shape_text(tensor.tensor.sizes().vec()) + "\n";
    sha.update(head.data(), head.size());
    const at::Tensor values = tensor.tensor.detach().to(at::kCPU).contiguous();
    sha.update(values.const_data_ptr(), values.nbytes());
  }
  return sha.hex_digest();
}

Result<Gpt2Shape> random_shape(const Gpt2Size& size, int64_t vocabulary) {
  const bool has_heads = size.width > 0 && (size.width <= kHeadWidth || size.width % kHeadWidth == 0);
  if (size.num_layers < 1 || !has_heads) {
    return Error{ErrorCode::kInvalid,
                 "--gpt2_config " + size_text(size.num_layers, size.width) +
                     ": expected at least one layer and a width up to 64 or a multiple of 64, as in "
                     "2x64 or 4x256"};
  }
  return Gpt2Shape{.num_layers = size.num_layers,
                   .width = size.width,
                   .num_heads = std::max<int64_t>(1, size.width / kHeadWidth),
                   .context = kRandomContext,
                   .vocabulary = vocabulary,
                   .inner_width = 4 * size.width};
}

Result<Gpt2Shape> shape_of(FileSystem& fs, const TextEncoderOptions& options, const BytePairEncoding& tokenizer) {
  // Texts are padded with the token that ends texts, which may lie outside the tokenizer's own vocabulary.
  const int32_t tokens = std::max(tokenizer.size(), tokenizer.end_of_text() + 1);
  if (options.gpt2_folder.empty()) return random_shape(options.size.value_or(Gpt2Size()), tokens);
  TRY_ASSIGN(const Gpt2Shape shape, read_gpt2_shape(fs, options.gpt2_folder));
  if (options.size && (options.size->num_layers != shape.num_layers || options.size->width != shape.width)) {
    return Error{ErrorCode::kInvalid, "--gpt2_path " + options.gpt2_folder + " holds a GPT-2 of " +
                                          size_text(shape.num_layers, shape.width) + ", and --gpt2_config says " +
                                          size_text(options.size->num_layers, options.size->width) +
                                          "; leave --gpt2_config out to take what the folder holds"};
  }
  if (tokens > shape.vocabulary) {
    return Error{ErrorCode::kInvalid, "the tokenizer has " + std::to_string(tokens) + " tokens, and GPT-2 in " +
                                          options.gpt2_folder + " knows " + std::to_string(shape.vocabulary) +
                                          " (vocab_size in config.json); expected files of one model"};
  }
  if (shape.end_of_text && *shape.end_of_text != tokenizer.end_of_text()) {
    return Error{ErrorCode::kInvalid, "the tokenizer ends a text with token " +
                                          std::to_string(tokenizer.end_of_text()) + ", and GPT-2 in " +
                                          options.gpt2_folder + " with " + std::to_string(*shape.end_of_text) +
                                          " (eos_token_id in config.json); expected files of one model"};
  }
  return shape;
}

Result<BytePairEncoding> tokenizer_of(FileSystem& fs, const TextEncoderOptions& options) {
  if (!options.tokenizer_folder.empty()) return BytePairEncoding::load(fs, options.tokenizer_folder);
  if (options.gpt2_folder.empty()) return BytePairEncoding::of_bytes();
  Result<BytePairEncoding> loaded = BytePairEncoding::load(fs, options.gpt2_folder);
  if (loaded.ok() || loaded.error().code != ErrorCode::kNotFound) return loaded;
  return Error{loaded.error().code,
               loaded.error().message + ". Put them there, or give their folder as --tokenizer_path"};
}

}  // namespace

Result<std::unique_ptr<TextEncoder>> TextEncoder::make(FileSystem& fs, const TextEncoderOptions& options,
                                                       at::Device device) {
  std::error_code unknown;  // what is read from a folder that may not be searched says so
  if (!options.gpt2_folder.empty() &&
      std::filesystem::status(options.gpt2_folder, unknown).type() == std::filesystem::file_type::not_found) {
    return Error{
        ErrorCode::kNotFound,
        "--gpt2_path " + options.gpt2_folder +
            ": there is no such folder. Expected one that save_pretrained of Python's transformers wrote, or a "
            "download from its hub: a model's name alone is not downloaded"};
  }
  TRY_ASSIGN(BytePairEncoding tokenizer, tokenizer_of(fs, options));
  TRY_ASSIGN(const Gpt2Shape shape, shape_of(fs, options, tokenizer));
  if (options.max_length < 1 || options.max_length > shape.context) {
    return Error{ErrorCode::kInvalid, "--max_length is " + std::to_string(options.max_length) + "; expected 1 to " +
                                          std::to_string(shape.context) +
                                          ", the tokens of the longest text that this GPT-2 knows"};
  }
  Gpt2 gpt2(shape, options.lora, device);
  if (options.gpt2_folder.empty()) {
    gpt2.initialize_weights(kRandomWeightsSeed);
  } else {
    TRY(read_gpt2_weights(fs, options.gpt2_folder, gpt2.weights()));
  }
  return std::unique_ptr<TextEncoder>(new TextEncoder(options, std::move(tokenizer), std::move(gpt2)));
}

TextEncoder::TextEncoder(TextEncoderOptions options, BytePairEncoding tokenizer, Gpt2 gpt2)
    : options_(std::move(options)),
      tokenizer_(std::move(tokenizer)),
      gpt2_(std::move(gpt2)),
      frozen_{{.name = "GPT-2", .sha256 = digest_of(gpt2_.weights())},
              {.name = "the tokenizer", .sha256 = tokenizer_.digest()}} {}

std::vector<int64_t> TextEncoder::tokenize(std::string_view text) const {
  const std::vector<int32_t> tokens = tokenizer_.encode(text, static_cast<size_t>(options_.max_length));
  if (tokens.empty()) return {padding_token()};
  return {tokens.begin(), tokens.end()};
}

at::Tensor TextEncoder::encode(const at::Tensor& tokens_NT, const at::Tensor& lengths_N,
                               const std::optional<TextDraws>& draws) const {
  const at::Tensor places_NT = at::arange(tokens_NT.size(1), tokens_NT.options()).expand_as(tokens_NT);
  const at::Tensor is_token_NT = places_NT.lt(lengths_N.unsqueeze(1));
  const bool is_padded = options_.pool == TextPool::kPadded;
  Gpt2Input input{.tokens_NT = tokens_NT, .rows_S = {}, .is_seen_NT = is_padded ? is_token_NT : at::Tensor()};
  // A CPU computes only the places that hold a token. A GPU computes all places, because the host would have to wait
  // for it to learn how many hold one.
  if (!is_padded && tokens_NT.is_cpu()) input.rows_S = is_token_NT.flatten().nonzero().squeeze(1);
  const auto of_places = [&](const at::Tensor& values_NT) {
    const at::Tensor all = values_NT.reshape(-1);
    return input.rows_S.defined() ? all.index_select(0, input.rows_S) : all;
  };
  Dropouts dropouts;
  if (draws) {
    dropouts = Dropouts(
        options_.lora.dropout, {.seed = draws->seed, .step = draws->step, .first_slot = 0, .layer = kFirstTextDropout},
        {.samples_R = of_places(draws->text_ids_N.unsqueeze(1).expand_as(tokens_NT)), .parts_R = of_places(places_NT)});
  }
  const at::Tensor hidden_NTD = gpt2_.hidden(input, dropouts).to(at::kFloat);
  if (is_padded) return hidden_NTD.mean(1);
  return (hidden_NTD * is_token_NT.unsqueeze(2)).sum(1) / lengths_N.unsqueeze(1);
}

std::vector<std::pair<std::string, std::string>> TextEncoder::describe() const {
  const Gpt2Shape& shape = gpt2_.shape();
  const std::string size = "GPT-2 " + size_text(shape.num_layers, shape.width);
  const std::string weights = millions(static_cast<double>(count_elements(gpt2_.weights()))) + " weights, frozen";
  std::array<char, 96> lora{};
  static_cast<void>(std::snprintf(
      lora.data(), lora.size(), "LoRA of rank %lld, alpha %g, dropout %g: ", static_cast<long long>(options_.lora.rank),
      options_.lora.alpha, options_.lora.dropout));
  return {{"text encoder", size + (options_.gpt2_folder.empty() ? ", random (no --gpt2_path), " : ", ") + weights},
          {"adapters", lora.data() + millions(static_cast<double>(count_elements(adapters()))) + " weights, trained"},
          {"tokens of a text", (tokenizer_.is_of_bytes() ? std::string("its bytes (no tokenizer files)")
                                                         : "byte pairs of " + std::to_string(tokenizer_.size())) +
                                   ", the first " + std::to_string(options_.max_length)}};
}

}  // namespace lockstep
