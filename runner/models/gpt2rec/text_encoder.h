// TextEncoder: texts → vectors, by a frozen GPT-2 with trained low-rank adapters.
//
// Role: makes the input of the recommender from the texts of users and films. Tokenizer and weights come from a folder
// in Hugging Face's layout (--gpt2_path: config.json, model.safetensors, and the tokenizer's). Without a folder,
// GPT-2 has a given size and random weights; without tokenizer files, the tokens are the bytes.
// Determinism: except for rounding, a text's vector depends only on the text, the adapters and its draws, not on the
// other texts of the batch; with --pool padded it also depends on the length of the batch.
// Memory: GPT-2's weights are fp32, four bytes each, whatever type the file has (0.5 GB for GPT-2 small); while they
// are read, the file is in memory as well.
// Threads: tokenize from any; all else one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/text/byte_pair_encoding.h"
#include "runner/models/gpt2rec/gpt2.h"
#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/workload.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct TextEncoderOptions {
  std::string gpt2_folder;       // --gpt2_path; empty: random weights
  std::string tokenizer_folder;  // --tokenizer_path; empty: gpt2_folder, and if that is empty too, bytes are tokens
  std::optional<Gpt2Size> size;  // of random weights (unset: 2x64); with a folder, the size that it must have
  LoraOptions lora;
  TextPool pool = TextPool::kMaskedMean;
  int64_t max_length = 128;  // tokens of a text; longer texts are cut
};

// The key of a training step's dropout. In one step a text has the same mask on every rank and in every batch.
struct TextDraws {
  uint64_t seed = 0;
  int64_t step = 0;
  at::Tensor text_ids_N;  // int64, on the device, 0 … 2³² - 1: each text's own number
};

// The dropouts of the text encoder are numbered from here (DropoutKey::layer); those before it are the workload's.
inline constexpr uint32_t kFirstTextDropout = 0x1000;

class TextEncoder {
 public:
  // Reads the folder. Adapters are not yet initialised.
  // Errors: kNotFound, kInvalid, kCorrupt: a file that is missing, of another size or damaged, and what to do.
  static Result<std::unique_ptr<TextEncoder>> make(FileSystem& fs, const TextEncoderOptions& options,
                                                   at::Device device);

  // One to max_length tokens; for an empty text, the token that ends texts.
  [[nodiscard]] std::vector<int64_t> tokenize(std::string_view text) const;
  // What texts are padded with: the token that ends texts (50256 with GPT-2's own tokenizer).
  [[nodiscard]] int64_t padding_token() const { return tokenizer_.end_of_text(); }

  // tokens_NT [N, T] int64 padded at the right with padding_token(); lengths_N [N] int64, each at least 1. Returns
  // [N, width], fp32, with an autograd graph to the adapters. Without draws, dropout is off.
  [[nodiscard]] at::Tensor encode(const at::Tensor& tokens_NT, const at::Tensor& lengths_N,
                                  const std::optional<TextDraws>& draws = std::nullopt) const;

  // Trainable leaves: "h.0.attn.c_attn.lora_A.weight" …; peft_adapter.h makes a folder for Python of them.
  [[nodiscard]] const NamedTensors& adapters() const { return gpt2_.adapters(); }
  void initialize(uint64_t seed) { gpt2_.initialize_adapters(seed); }
  // GPT-2's weights, under the names of Hugging Face's GPT2Model.
  [[nodiscard]] const NamedTensors& weights() const { return gpt2_.weights(); }
  // GPT-2's weights and the tokenizer's files.
  [[nodiscard]] const std::vector<FrozenInput>& frozen() const { return frozen_; }

  [[nodiscard]] int64_t width() const { return gpt2_.shape().width; }
  [[nodiscard]] const TextEncoderOptions& options() const { return options_; }
  [[nodiscard]] const Gpt2& gpt2() const { return gpt2_; }
  // Lines for the start table.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const;

 private:
  TextEncoder(TextEncoderOptions options, BytePairEncoding tokenizer, Gpt2 gpt2);

  TextEncoderOptions options_;
  BytePairEncoding tokenizer_;
  Gpt2 gpt2_;
  std::vector<FrozenInput> frozen_;
};

}  // namespace lockstep
