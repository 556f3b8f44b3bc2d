// Gpt2: the layers of GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) without its
// language-model head, and low-rank adapters (lora_linear.h) on attn.c_attn, attn.c_proj and mlp.c_proj of each layer.
//
// Role: tokenized texts → the last hidden state. GPT-2's own weights are frozen; the adapters are trained. Names and
// layouts of the weights are those of Hugging Face's GPT2Model ("h.0.attn.c_attn.weight", [in, out]).
// Dropout: in the adapters only. GPT-2's own three dropouts (embeddings, attention, residuals) are left out, because
// the weights that they regularise are frozen here.
// Threads: one. Shapes: N texts of T token positions (padded at the right), S of these N·T positions that are computed,
// D width, H heads, R rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "runner/layers/dropouts.h"
#include "runner/layers/layer_norm.h"
#include "runner/models/gpt2rec/lora_linear.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct Gpt2Shape {
  int64_t num_layers = 12;
  int64_t width = 768;
  int64_t num_heads = 12;  // divides width
  int64_t context = 1024;  // most tokens of a text
  int64_t vocabulary = 50257;
  int64_t inner_width = 4 * 768;       // of the feed-forward layers
  std::optional<int64_t> end_of_text;  // the token that ends a text, where the file says it

  friend bool operator==(const Gpt2Shape&, const Gpt2Shape&) = default;
};

struct Gpt2Layer {
  LayerNorm ln_1;
  LoraLinear c_attn;  // D → 3D: queries, keys, values
  LoraLinear c_proj;
  LayerNorm ln_2;
  at::Tensor c_fc_weight;  // [D, inner]
  at::Tensor c_fc_bias;
  LoraLinear mlp_c_proj;  // inner → D
};

struct Gpt2Input {
  at::Tensor tokens_NT;  // int64, each below the vocabulary; T at most the context
  // int64, ascending: which of the N·T positions are computed; undefined: all. All positions that come before a
  // computed one in the same text must be computed, too.
  at::Tensor rows_S;
  // bool: the positions that others may attend to; undefined: all. Attention is causal in both cases.
  at::Tensor is_seen_NT;
};

class Gpt2 {
 public:
  // Weights are fp32 on `device`, not yet initialised.
  Gpt2(const Gpt2Shape& shape, const LoraOptions& lora, at::Device device);

  // The initial values of GPT-2's own training: normal with deviation 0.02, divided by √(2 · layers) for the
  // projections back into the residual; norms 1, biases 0.
  void initialize_weights(uint64_t seed);
  // The adapters' initial values, with which the output is that of GPT-2 without adapters.
  void initialize_adapters(uint64_t seed);

  [[nodiscard]] const NamedTensors& weights() const { return weights_; }    // frozen
  [[nodiscard]] const NamedTensors& adapters() const { return adapters_; }  // trainable leaves
  [[nodiscard]] const Gpt2Shape& shape() const { return shape_; }
  [[nodiscard]] const LoraOptions& lora() const { return lora_; }

  // The last hidden state, after the final layer norm: [N, T, D], zero at positions that are not computed, with an
  // autograd graph to the adapters. `dropouts` apply to the S rows.
  [[nodiscard]] at::Tensor hidden(const Gpt2Input& input, Dropouts& dropouts) const;

  // FLOPs of the forward pass for one token that attends to `places` tokens.
  [[nodiscard]] double flops_per_token(int64_t places) const;

 private:
  void name_weights();
  [[nodiscard]] at::Tensor attention(const Gpt2Layer& layer, const at::Tensor& x_SD, const Gpt2Input& input,
                                     Dropouts& dropouts) const;

  Gpt2Shape shape_;
  LoraOptions lora_;
  at::Tensor wte_;  // [vocabulary, D]
  at::Tensor wpe_;  // [context, D]
  std::vector<Gpt2Layer> layers_;
  LayerNorm ln_f_;
  NamedTensors weights_;
  NamedTensors adapters_;
};

}  // namespace lockstep
