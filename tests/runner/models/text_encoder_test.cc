#include "runner/models/gpt2rec/text_encoder.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/checkpoint/weights.h"
#include "runner/layers/initial_values.h"
#include "runner/models/gpt2rec/gpt2_files.h"
#include "runner/models/gpt2rec/peft_adapter.h"
#include "tests/support/disk.h"
#include "tests/support/save_weights.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

constexpr int64_t kLayers = 2;
constexpr int64_t kWidth = 16;
const at::Device kCpu(at::kCPU);

std::unique_ptr<TextEncoder> made(TextEncoderOptions options = {}) {
  if (!options.size && options.gpt2_folder.empty()) options.size = Gpt2Size{.num_layers = kLayers, .width = kWidth};
  Result<std::unique_ptr<TextEncoder>> encoder = TextEncoder::make(disk(), options, kCpu);
  EXPECT_TRUE(encoder.ok()) << encoder.error().message;
  (*encoder)->initialize(/*seed=*/7);
  return std::move(*encoder);
}

// Both halves of the adapters: as they begin, the second is zero.
void draw_adapters(const TextEncoder& encoder) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < encoder.adapters().size(); ++i) {
    const at::Tensor& adapter = encoder.adapters()[i].tensor;
    adapter.copy_(InitialValues(11, i).normal(adapter.sizes(), 0.1));
  }
}

struct Batch {
  at::Tensor tokens_NT;
  at::Tensor lengths_N;
};

// Padded to the longest, or to `places`.
Batch batch_of(const TextEncoder& encoder, const std::vector<std::string>& texts, int64_t places = 0) {
  std::vector<std::vector<int64_t>> rows;
  std::vector<int64_t> lengths;
  for (const std::string& text : texts) {
    rows.push_back(encoder.tokenize(text));
    lengths.push_back(static_cast<int64_t>(rows.back().size()));
    places = std::max(places, lengths.back());
  }
  const auto n = static_cast<int64_t>(texts.size());
  Batch batch{.tokens_NT = at::full({n, places}, encoder.padding_token(), at::kLong),
              .lengths_N = at::tensor(lengths, at::kLong)};
  for (int64_t i = 0; i < n; ++i) {
    const auto& row = rows[static_cast<size_t>(i)];
    batch.tokens_NT[i].slice(0, 0, static_cast<int64_t>(row.size())).copy_(at::tensor(row, at::kLong));
  }
  return batch;
}

at::Tensor encoded(const TextEncoder& encoder, const std::vector<std::string>& texts, int64_t places = 0,
                   const std::optional<TextDraws>& draws = std::nullopt) {
  const at::NoGradGuard no_grad;
  const Batch batch = batch_of(encoder, texts, places);
  return encoder.encode(batch.tokens_NT, batch.lengths_N, draws);
}

TextDraws draws_of(const std::vector<int64_t>& ids, int64_t step = 3, uint64_t seed = 5) {
  return {.seed = seed, .step = step, .text_ids_N = at::tensor(ids, at::kLong)};
}

bool is_close(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-4, 1e-5); }

const std::vector<std::string> kTexts = {"Movie: Toy Story (1995).", "User", "Occupation is artist."};

TEST(TextEncoder, works_without_any_file_and_the_bytes_are_its_tokens) {
  const auto encoder = made();
  EXPECT_EQ(encoder->tokenize("Toy"), (std::vector<int64_t>{'T', 'o', 'y'}));
  EXPECT_EQ(encoder->padding_token(), 256);
  const at::Tensor vectors = encoded(*encoder, kTexts);
  EXPECT_EQ(vectors.sizes(), (std::vector<int64_t>{3, kWidth}));
  EXPECT_TRUE(vectors.isfinite().all().item<bool>());
  EXPECT_FALSE(is_close(vectors[0], vectors[1]));
  const auto lines = encoder->describe();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].second, "GPT-2 2x16, random (no --gpt2_path), 0.027 M weights, frozen");
  EXPECT_EQ(lines[1].second, "LoRA of rank 8, alpha 32, dropout 0.1: 0.003 M weights, trained");
  EXPECT_EQ(lines[2].second, "its bytes (no tokenizer files), the first 128");
}

TEST(TextEncoder, random_weights_depend_on_the_size_alone_and_adapters_on_the_seed) {
  const auto one = made();
  const auto other = made();
  other->initialize(/*seed=*/8);
  EXPECT_EQ(one->frozen().front().sha256, other->frozen().front().sha256);
  EXPECT_NE(one->frozen().front().sha256,
            made({.size = Gpt2Size{.num_layers = 1, .width = kWidth}})->frozen().front().sha256);
  EXPECT_FALSE(at::equal(one->adapters()[0].tensor, other->adapters()[0].tensor));
  other->initialize(/*seed=*/7);
  EXPECT_TRUE(at::equal(one->adapters()[0].tensor, other->adapters()[0].tensor));
}

TEST(TextEncoder, adapters_change_nothing_until_they_are_trained) {
  const auto encoder = made();
  const at::Tensor before = encoded(*encoder, kTexts);
  encoder->initialize(/*seed=*/99);
  EXPECT_TRUE(at::equal(encoded(*encoder, kTexts), before));
  draw_adapters(*encoder);
  EXPECT_FALSE(is_close(encoded(*encoder, kTexts), before));
}

TEST(TextEncoder, a_texts_vector_depends_neither_on_the_batch_nor_on_its_padding) {
  const auto encoder = made();
  draw_adapters(*encoder);
  const at::Tensor together = encoded(*encoder, kTexts);
  for (size_t i = 0; i < kTexts.size(); ++i) {
    EXPECT_TRUE(is_close(encoded(*encoder, {kTexts[i]})[0], together[static_cast<int64_t>(i)])) << kTexts[i];
  }
  EXPECT_TRUE(is_close(encoded(*encoder, kTexts, 60), together));
}

TEST(TextEncoder, the_mean_over_padding_depends_on_it_as_in_the_guide) {
  const auto encoder = made({.pool = TextPool::kPadded});
  const at::Tensor alone = encoded(*encoder, {"User"});
  EXPECT_TRUE(is_close(alone, encoded(*made(), {"User"})));
  EXPECT_FALSE(is_close(encoded(*encoder, {"User"}, 40), alone));
}

TEST(TextEncoder, a_text_has_the_same_draws_whatever_the_batch) {
  const auto encoder = made();
  draw_adapters(*encoder);
  const at::Tensor together = encoded(*encoder, kTexts, 0, draws_of({12, 4, 70000}));
  const at::Tensor turned = encoded(*encoder, {kTexts[2], kTexts[0]}, 50, draws_of({70000, 12}));
  EXPECT_TRUE(is_close(turned[0], together[2]));
  EXPECT_TRUE(is_close(turned[1], together[0]));
}

TEST(TextEncoder, seed_step_and_text_each_change_the_draws) {
  const auto encoder = made();
  draw_adapters(*encoder);
  const at::Tensor base = encoded(*encoder, {"User"}, 0, draws_of({1}));
  EXPECT_TRUE(at::equal(encoded(*encoder, {"User"}, 0, draws_of({1})), base));
  EXPECT_FALSE(is_close(encoded(*encoder, {"User"}, 0, draws_of({2})), base));
  EXPECT_FALSE(is_close(encoded(*encoder, {"User"}, 0, draws_of({1}, /*step=*/4)), base));
  EXPECT_FALSE(is_close(encoded(*encoder, {"User"}, 0, draws_of({1}, /*step=*/3, /*seed=*/6)), base));
  EXPECT_FALSE(is_close(encoded(*encoder, {"User"}), base));
}

TEST(TextEncoder, trains_every_adapter_and_nothing_else) {
  for (const TextPool pool : {TextPool::kMaskedMean, TextPool::kPadded}) {
    const auto encoder = made({.pool = pool});
    draw_adapters(*encoder);
    const Batch batch = batch_of(*encoder, kTexts);
    const at::Tensor vectors = encoder->encode(batch.tokens_NT, batch.lengths_N, draws_of({0, 1, 2}));
    vectors.square().sum().backward();
    EXPECT_EQ(encoder->adapters().size(), static_cast<size_t>(kLayers * 3 * 2));
    for (const NamedTensor& adapter : encoder->adapters()) {
      ASSERT_TRUE(adapter.tensor.grad().defined()) << adapter.name;
      EXPECT_GT(adapter.tensor.grad().abs().max().item<double>(), 0.0) << adapter.name;
    }
    for (const NamedTensor& weight : encoder->weights()) EXPECT_FALSE(weight.tensor.requires_grad()) << weight.name;
  }
}

TEST(TextEncoder, trains_under_autocast_with_about_the_same_gradients) {
  const auto gradients = [](bool has_autocast) {
    const auto encoder = made();
    draw_adapters(*encoder);
    const Batch batch = batch_of(*encoder, kTexts);
    at::autocast::set_autocast_enabled(at::kCPU, has_autocast);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor vectors = encoder->encode(batch.tokens_NT, batch.lengths_N, draws_of({0, 1, 2}));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    vectors.square().sum().backward();
    std::vector<at::Tensor> all;
    for (const NamedTensor& adapter : encoder->adapters()) all.push_back(adapter.tensor.grad());
    return all;
  };
  const std::vector<at::Tensor> expected = gradients(false);
  const std::vector<at::Tensor> found = gradients(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT((found[i] - expected[i]).norm().item<double>(), 0.1 * expected[i].norm().item<double>()) << i;
  }
}

TEST(TextEncoder, gradients_are_those_of_finite_differences) {
  const auto encoder = made();
  draw_adapters(*encoder);
  const Batch batch = batch_of(*encoder, kTexts);
  const at::Tensor of_vectors = InitialValues(1, 0).normal({3, kWidth}, 1.0);
  const auto loss = [&] {
    return (encoder->encode(batch.tokens_NT, batch.lengths_N, draws_of({0, 1, 2})) * of_vectors).sum();
  };
  loss().backward();
  const at::NoGradGuard no_grad;
  for (const NamedTensor& adapter : encoder->adapters()) {
    const at::Tensor direction = adapter.tensor.grad() / adapter.tensor.grad().norm();
    constexpr double kStep = 1e-2;
    adapter.tensor.add_(direction, kStep);
    const double above = loss().item<double>();
    adapter.tensor.add_(direction, -2 * kStep);
    const double below = loss().item<double>();
    adapter.tensor.add_(direction, kStep);
    const double norm = adapter.tensor.grad().norm().item<double>();
    EXPECT_NEAR((above - below) / (2 * kStep), norm, 0.02 * norm + 1e-3) << adapter.name;
  }
}

TEST(TextEncoder, cuts_long_texts_and_knows_the_empty_one) {
  const auto encoder = made({.max_length = 5});
  EXPECT_EQ(encoder->tokenize(std::string(1000, 'x')), std::vector<int64_t>(5, 'x'));
  EXPECT_EQ(encoder->tokenize(""), std::vector<int64_t>{encoder->padding_token()});
  EXPECT_TRUE(encoded(*encoder, {"", "abc"}).isfinite().all().item<bool>());
}

// A folder as transformers writes one, of the random GPT-2's own weights.
class Gpt2Folder : public testing::Test {
 protected:
  Gpt2Folder() {
    const auto encoder = made();
    for (const NamedTensor& weight : encoder->weights()) tensors_.push_back({weight.name, weight.tensor.clone()});
    config_ = {{"model_type", "gpt2"},      {"n_layer", kLayers},
               {"n_embd", kWidth},          {"n_head", 1},
               {"n_positions", 1024},       {"vocab_size", 257},
               {"n_inner", OrderedJson()},  {"activation_function", "gelu_new"},
               {"layer_norm_epsilon", 1e-5}};
    OrderedJson vocabulary = OrderedJson::object();
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool is_itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const uint32_t code = is_itself ? byte : next++;
      std::string written(1, static_cast<char>(code));
      if (code >= 0x80) written = {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
      if (byte != 'q') vocabulary[written] = byte;  // its number is that of the pair
    }
    vocabulary["q"] = 257;
    vocabulary["th"] = 'q';
    vocabulary["<|endoftext|>"] = 256;
    folder_.write("vocab.json", dump_line(vocabulary));
    folder_.write("merges.txt", "#version: 0.2\nt h\n");
    config_["vocab_size"] = 258;
    named("wte.weight") = at::cat({named("wte.weight"), at::zeros({1, kWidth})});
    write();
  }

  at::Tensor& named(const std::string& name) {
    for (NamedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor.tensor;
    }
    throw std::runtime_error("no tensor " + name);
  }

  void write(const std::string& name = "model.safetensors") {
    PosixFileSystem files;
    EXPECT_TRUE(save_weights(files, folder_.file(name), tensors_).ok());
    folder_.write("config.json", dump_pretty(config_));
  }

  [[nodiscard]] TextEncoderOptions options() const { return {.gpt2_folder = folder_.path()}; }

  [[nodiscard]] std::string refusal(const TextEncoderOptions& options) const {
    const Result<std::unique_ptr<TextEncoder>> encoder = TextEncoder::make(disk(), options, kCpu);
    return encoder.ok() ? "none" : encoder.error().message;
  }
  [[nodiscard]] std::string refusal() const { return refusal(options()); }

  TemporaryFolder folder_;
  NamedTensors tensors_;
  OrderedJson config_;
};

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST_F(Gpt2Folder, gives_shape_weights_and_tokenizer) {
  const auto encoder = made(options());
  EXPECT_EQ(encoder->tokenize("th"), std::vector<int64_t>{'q'});
  EXPECT_TRUE(is_close(encoded(*encoder, {"abc"}), encoded(*made(), {"abc"})));
  EXPECT_EQ(encoder->describe()[0].second, "GPT-2 2x16, 0.027 M weights, frozen");
  EXPECT_EQ(encoder->describe()[2].second, "byte pairs of 258, the first 128");
}

TEST_F(Gpt2Folder, takes_the_names_of_a_language_model_and_leaves_its_head_and_masks) {
  const std::string digest = made(options())->frozen().front().sha256;
  for (NamedTensor& tensor : tensors_) tensor.name.insert(0, "transformer.");
  tensors_.push_back({"lm_head.weight", at::zeros({258, kWidth})});
  tensors_.push_back({"transformer.h.0.attn.bias", at::ones({1, 1, 8, 8}, at::kByte)});
  tensors_.push_back({"transformer.h.0.attn.masked_bias", at::tensor(-1e4)});
  write();
  EXPECT_EQ(made(options())->frozen().front().sha256, digest);
}

TEST_F(Gpt2Folder, half_precision_becomes_fp32) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor rounded = named("wpe.weight").to(dtype).to(at::kFloat);
    for (NamedTensor& tensor : tensors_) tensor.tensor = tensor.tensor.to(dtype);
    write();
    const auto encoder = made(options());
    EXPECT_EQ(encoder->weights()[1].name, "wpe.weight");
    EXPECT_TRUE(at::equal(encoder->weights()[1].tensor, rounded));
  }
}

TEST_F(Gpt2Folder, reads_shards_and_says_which_is_missing) {
  const std::string digest = made(options())->frozen().front().sha256;
  const NamedTensors all = tensors_;
  OrderedJson map = OrderedJson::object();
  for (size_t i = 0; i < all.size(); ++i) map[all[i].name] = i < 5 ? "model-1.safetensors" : "model-2.safetensors";
  tensors_.assign(all.begin(), all.begin() + 5);
  write("model-1.safetensors");
  tensors_.assign(all.begin() + 5, all.end());
  write("model-2.safetensors");
  std::filesystem::remove(folder_.file("model.safetensors"));
  folder_.write("model.safetensors.index.json", dump_line(OrderedJson{{"weight_map", map}}));
  EXPECT_EQ(made(options())->frozen().front().sha256, digest);

  std::filesystem::remove(folder_.file("model-2.safetensors"));
  EXPECT_SAYS(refusal(), "model-2.safetensors is not there, but");
  map["wte.weight"] = "../model.safetensors";
  folder_.write("model.safetensors.index.json", dump_line(OrderedJson{{"weight_map", map}}));
  EXPECT_SAYS(refusal(), "the file of tensor wte.weight is \"../model.safetensors\"; expected the name of a file");
  folder_.write("model.safetensors.index.json", "{}");
  EXPECT_SAYS(refusal(), "expected weight_map");
}

TEST_F(Gpt2Folder, refuses_weights_of_another_size) {
  named("wpe.weight") = at::zeros({512, kWidth});
  write();
  EXPECT_SAYS(refusal(), "model.safetensors: tensor wpe.weight has the shape [512, 16]; expected [1024, 16]");
  config_["n_layer"] = 1;
  config_["n_positions"] = 512;
  write();
  EXPECT_SAYS(refusal(), "tensor h.1.attn.c_attn.bias belongs to no GPT-2 of the size in config.json");
  config_["n_layer"] = 3;
  write();
  EXPECT_SAYS(refusal(), "model.safetensors has no tensor h.2.ln_1.weight [16]");
}

TEST_F(Gpt2Folder, refuses_a_tokenizer_of_another_model) {
  config_["eos_token_id"] = 50256;
  write();
  EXPECT_SAYS(refusal(), "the tokenizer ends a text with token 256, and GPT-2 in " + folder_.path() + " with 50256");
  config_["eos_token_id"] = 256;
  write();
  EXPECT_EQ(refusal(), "none");
}

TEST_F(Gpt2Folder, refuses_another_size_than_the_flag) {
  TextEncoderOptions both = options();
  both.size = Gpt2Size{.num_layers = 12, .width = 768};
  EXPECT_SAYS(refusal(both), "holds a GPT-2 of 2x16, and --gpt2_config says 12x768; leave --gpt2_config out");
  both.size = Gpt2Size{.num_layers = kLayers, .width = kWidth};
  EXPECT_EQ(refusal(both), "none");
}

TEST_F(Gpt2Folder, refuses_a_file_that_is_cut_off_or_of_whole_numbers) {
  const std::string whole = contents(folder_.file("model.safetensors"));
  folder_.write("model.safetensors", std::string_view(whole).substr(0, whole.size() / 2));
  EXPECT_SAYS(refusal(), "model.safetensors");
  EXPECT_SAYS(refusal(), "truncated");
  folder_.write("model.safetensors", "");
  EXPECT_SAYS(refusal(), "truncated");
  named("ln_f.bias") = at::zeros({kWidth}, at::kChar);
  write();
  EXPECT_SAYS(refusal(), "tensor ln_f.bias is of I8; expected F32, F16 or BF16");
}

TEST_F(Gpt2Folder, refuses_a_model_that_is_no_gpt2) {
  const OrderedJson good = config_;
  const auto with = [&](const char* field, const OrderedJson& value) {
    config_ = good;
    config_[field] = value;
    write();
    return refusal();
  };
  EXPECT_SAYS(with("model_type", "llama"), "config.json: model_type is \"llama\"; expected \"gpt2\"");
  EXPECT_SAYS(with("activation_function", "relu"), "activation_function is \"relu\"; expected \"gelu_new\"");
  EXPECT_SAYS(with("layer_norm_epsilon", 1e-6), "layer_norm_epsilon is 1e-06; expected 1e-05");
  EXPECT_SAYS(with("scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx is true");
  EXPECT_SAYS(with("n_head", 3), "n_embd 16 is no multiple of n_head 3");
  EXPECT_SAYS(with("n_layer", "two"), "n_layer is \"two\"; expected a number from 1 on");
  EXPECT_SAYS(with("n_layer", -1), "n_layer is -1");
  EXPECT_SAYS(with("vocab_size", OrderedJson()), "vocab_size is null");
  EXPECT_SAYS(with("vocab_size", 100), "the tokenizer has 258 tokens, and GPT-2 in");
  folder_.write("config.json", "[]");
  EXPECT_SAYS(refusal(), "config.json: expected an object, found array");
  folder_.write("config.json", "{\n");
  EXPECT_SAYS(refusal(), "config.json is not valid JSON");
  std::filesystem::remove(folder_.file("config.json"));
  EXPECT_SAYS(refusal(), "config.json is not there; --gpt2_path is a folder that save_pretrained");
}

TEST_F(Gpt2Folder, says_what_to_do_where_files_are_missing) {
  std::filesystem::remove(folder_.file("model.safetensors"));
  EXPECT_SAYS(refusal(), "holds no model.safetensors");
  folder_.write("pytorch_model.bin", "");
  EXPECT_SAYS(refusal(), "but pytorch_model.bin: load it with Python's transformers");
  std::filesystem::remove(folder_.file("merges.txt"));
  EXPECT_SAYS(refusal(), "neither merges.txt nor vocab.bpe");
  EXPECT_SAYS(refusal(), "give their folder as --tokenizer_path");
}

TEST_F(Gpt2Folder, takes_a_tokenizer_from_a_folder_of_its_own) {
  const TemporaryFolder tokenizer;
  for (const char* name : {"vocab.json", "merges.txt"})
    std::filesystem::rename(folder_.file(name), tokenizer.file(name));
  TextEncoderOptions separate = options();
  separate.tokenizer_folder = tokenizer.path();
  EXPECT_EQ(made(separate)->tokenize("th"), std::vector<int64_t>{'q'});
  const auto random = made({.tokenizer_folder = tokenizer.path()});
  EXPECT_EQ(random->tokenize("th"), std::vector<int64_t>{'q'});
  EXPECT_EQ(random->gpt2().shape().vocabulary, 258);
}

TEST_F(Gpt2Folder, has_a_place_for_a_token_that_ends_texts_outside_the_vocabulary) {
  folder_.write("tokenizer_config.json",
                R"({"eos_token": "<|im_end|>", "added_tokens_decoder": {"300": {"content": "<|im_end|>"}}})");
  const auto random = made({.tokenizer_folder = folder_.path(), .pool = TextPool::kPadded});
  EXPECT_EQ(random->padding_token(), 300);
  EXPECT_EQ(random->gpt2().shape().vocabulary, 301);
  EXPECT_TRUE(encoded(*random, {"", "abc"}).isfinite().all().item<bool>());
  EXPECT_SAYS(refusal(), "the tokenizer has 301 tokens, and GPT-2 in");
}

TEST(TextEncoder, refuses_sizes_that_cannot_be) {
  const auto refusal = [](const TextEncoderOptions& options) {
    const Result<std::unique_ptr<TextEncoder>> encoder = TextEncoder::make(disk(), options, kCpu);
    return encoder.ok() ? std::string("none") : encoder.error().message;
  };
  EXPECT_SAYS(refusal({.size = Gpt2Size{.num_layers = 2, .width = 100}}), "--gpt2_config 2x100: expected at least");
  EXPECT_SAYS(refusal({.size = Gpt2Size{.num_layers = 0, .width = 64}}), "--gpt2_config 0x64");
  EXPECT_SAYS(refusal({.max_length = 0}), "--max_length is 0; expected 1 to 1024");
  EXPECT_SAYS(refusal({.max_length = 1025}), "--max_length is 1025; expected 1 to 1024");
}

TEST(PeftFiles, hold_the_adapters_as_python_names_them) {
  const auto encoder = made();
  draw_adapters(*encoder);
  const PeftFiles files = peft_files(encoder->adapters(), encoder->options().lora, "gpt2").value();
  const Json config = Json::parse(files.config);
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 8);
  EXPECT_TRUE(config["lora_alpha"].is_number_integer());
  EXPECT_EQ(config["fan_in_fan_out"], true);
  EXPECT_EQ(config["base_model_name_or_path"], "gpt2");
  EXPECT_SAYS(files.weights, "base_model.model.h.1.mlp.c_proj.lora_B.weight");
}

TEST(PeftStateName, is_that_of_a_model_in_memory) {
  EXPECT_EQ(peft_state_name("wte.weight"), "base_model.model.wte.weight");
  EXPECT_EQ(peft_state_name("h.0.attn.c_attn.bias"), "base_model.model.h.0.attn.c_attn.base_layer.bias");
  EXPECT_EQ(peft_state_name("h.0.mlp.c_fc.weight"), "base_model.model.h.0.mlp.c_fc.weight");
  EXPECT_EQ(peft_state_name("h.3.mlp.c_proj.lora_A.weight"), "base_model.model.h.3.mlp.c_proj.lora_A.default.weight");
}

}  // namespace
}  // namespace lockstep
