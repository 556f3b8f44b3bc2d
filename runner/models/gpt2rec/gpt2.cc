#include "runner/models/gpt2rec/gpt2.h"

#include <torch/types.h>

#include <cmath>
#include <string>

#include "runner/kernels/tanh_gelu.h"
#include "runner/layers/initial_values.h"

namespace lockstep {
namespace {

constexpr double kGpt2Deviation = 0.02;

at::Tensor frozen(at::IntArrayRef sizes, at::Device device) {
  return at::zeros(sizes, at::TensorOptions(at::kFloat).device(device));
}

LayerNorm make_gpt2_norm(int64_t d, at::Device device) {
  return {.weight = frozen({d}, device), .bias = frozen({d}, device)};
}

// Puts the S computed rows at their positions in the texts, with zeros elsewhere: [S, D] → [N, T, D].
at::Tensor spread(const at::Tensor& x_SD, const Gpt2Input& input) {
  const int64_t n = input.tokens_NT.size(0);
  const int64_t t = input.tokens_NT.size(1);
  const int64_t d = x_SD.size(1);
  if (!input.rows_S.defined()) return x_SD.view({n, t, d});
  return at::zeros({n * t, d}, x_SD.options()).index_copy_(0, input.rows_S, x_SD).view({n, t, d});
}

// Takes the computed rows out of the texts: [N, T, …] → [S, …].
at::Tensor rows_of(const at::Tensor& x_NT, const Gpt2Input& input) {
  const at::Tensor all = x_NT.flatten(0, 1);
  return input.rows_S.defined() ? all.index_select(0, input.rows_S) : all;
}

// On a GPU the product itself adds the bias, at no cost.
at::Tensor inner_values(const Gpt2Layer& layer, const at::Tensor& x_SD) {
  if (x_SD.is_cpu()) return tanh_gelu(at::mm(x_SD, layer.c_fc_weight), layer.c_fc_bias);
  return at::gelu(at::addmm(layer.c_fc_bias, x_SD, layer.c_fc_weight), "tanh");
}

}  // namespace

Gpt2::Gpt2(const Gpt2Shape& shape, const LoraOptions& lora, at::Device device) : shape_(shape), lora_(lora) {
  const int64_t d = shape.width;
  wte_ = frozen({shape.vocabulary, d}, device);
  wpe_ = frozen({shape.context, d}, device);
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    layers_.push_back({.ln_1 = make_gpt2_norm(d, device),
                       .c_attn = make_lora_linear(d, 3 * d, lora, device),
                       .c_proj = make_lora_linear(d, d, lora, device),
                       .ln_2 = make_gpt2_norm(d, device),
                       .c_fc_weight = frozen({d, shape.inner_width}, device),
                       .c_fc_bias = frozen({shape.inner_width}, device),
                       .mlp_c_proj = make_lora_linear(shape.inner_width, d, lora, device)});
  }
  ln_f_ = make_gpt2_norm(d, device);
  name_weights();
}

void Gpt2::name_weights() {
  const auto add = [this](const std::string& name, const at::Tensor& weight, const at::Tensor& bias) {
    weights_.push_back({name + ".weight", weight});
    weights_.push_back({name + ".bias", bias});
  };
  const auto add_adapted = [&](const std::string& name, const LoraLinear& layer) {
    add(name, layer.weight, layer.bias);
    adapters_.push_back({name + ".lora_A.weight", layer.lora_A});
    adapters_.push_back({name + ".lora_B.weight", layer.lora_B});
  };
  weights_.push_back({"wte.weight", wte_});
  weights_.push_back({"wpe.weight", wpe_});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string name = "h." + std::to_string(i) + ".";
    const Gpt2Layer& layer = layers_[i];
    add(name + "ln_1", layer.ln_1.weight, layer.ln_1.bias);
    add_adapted(name + "attn.c_attn", layer.c_attn);
    add_adapted(name + "attn.c_proj", layer.c_proj);
    add(name + "ln_2", layer.ln_2.weight, layer.ln_2.bias);
    add(name + "mlp.c_fc", layer.c_fc_weight, layer.c_fc_bias);
    add_adapted(name + "mlp.c_proj", layer.mlp_c_proj);
  }
  add("ln_f", ln_f_.weight, ln_f_.bias);
}

void Gpt2::initialize_weights(uint64_t seed) {
  const at::NoGradGuard no_grad;
  const double into_residual = kGpt2Deviation / std::sqrt(2.0 * static_cast<double>(shape_.num_layers));
  for (size_t i = 0; i < weights_.size(); ++i) {
    const auto& [name, tensor] = weights_[i];
    if (tensor.dim() == 2) {
      const bool is_projection = name.ends_with("c_proj.weight");
      tensor.copy_(InitialValues(seed, i).normal(tensor.sizes(), is_projection ? into_residual : kGpt2Deviation));
    } else {
      tensor.fill_(name.ends_with(".weight") ? 1.0 : 0.0);
    }
  }
}

void Gpt2::initialize_adapters(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const auto& [name, tensor] = adapters_[i];
    if (name.ends_with("lora_A.weight")) {
      // Kaiming-uniform with a = √5, as in PEFT.
      const double bound = 1.0 / std::sqrt(static_cast<double>(tensor.size(1)));
      tensor.copy_(InitialValues(seed, i).uniform(tensor.sizes(), bound));
    } else {
      tensor.zero_();
    }
  }
}

at::Tensor Gpt2::attention(const Gpt2Layer& layer, const at::Tensor& x_SD, const Gpt2Input& input,
                           Dropouts& dropouts) const {
  const int64_t n = input.tokens_NT.size(0);
  const int64_t t = input.tokens_NT.size(1);
  const int64_t h = shape_.num_heads;
  const at::Tensor qkv_NT3HE =
      spread(apply(layer.c_attn, lora_.scale(), x_SD, dropouts), input).view({n, t, 3, h, shape_.width / h});
  const auto qkv_NHTE = qkv_NT3HE.permute({2, 0, 3, 1, 4}).unbind(0);
  at::Tensor mask_N1TT;
  if (input.is_seen_NT.defined()) mask_N1TT = input.is_seen_NT.view({n, 1, 1, t}).expand({n, 1, t, t}).tril();
  const at::Tensor attended_NHTE = at::scaled_dot_product_attention(
      qkv_NHTE[0], qkv_NHTE[1], qkv_NHTE[2], mask_N1TT.defined() ? std::optional<at::Tensor>(mask_N1TT) : std::nullopt,
      /*dropout_p=*/0.0, /*is_causal=*/!mask_N1TT.defined());
  const at::Tensor attended_NTD = attended_NHTE.transpose(1, 2).reshape({n, t, shape_.width});
  return apply(layer.c_proj, lora_.scale(), rows_of(attended_NTD, input), dropouts);
}

at::Tensor Gpt2::hidden(const Gpt2Input& input, Dropouts& dropouts) const {
  const at::Tensor tokens_S = rows_of(input.tokens_NT, input);
  const int64_t t = input.tokens_NT.size(1);
  const at::Tensor places_S =
      rows_of(at::arange(t, input.tokens_NT.options()).expand_as(input.tokens_NT).contiguous(), input);
  at::Tensor x_SD = at::embedding(wte_, tokens_S) + at::embedding(wpe_, places_S);
  for (const Gpt2Layer& layer : layers_) {
    x_SD = x_SD + attention(layer, layer.ln_1(x_SD), input, dropouts);
    x_SD = x_SD + apply(layer.mlp_c_proj, lora_.scale(), inner_values(layer, layer.ln_2(x_SD)), dropouts);
  }
  return spread(ln_f_(x_SD), input);
}

double Gpt2::flops_per_token(int64_t places) const {
  const auto d = static_cast<double>(shape_.width);
  const auto inner = static_cast<double>(shape_.inner_width);
  const auto rank = static_cast<double>(lora_.rank);
  const double weights = 4.0 * d * d + 2.0 * d * inner;
  const double of_adapters = rank * (4.0 * d + 2.0 * d + inner + d);
  const double attention = 2.0 * d * static_cast<double>(places);
  return 2.0 * static_cast<double>(shape_.num_layers) * (weights + of_adapters + attention);
}

}  // namespace lockstep
