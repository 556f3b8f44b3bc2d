#include "runner/models/jit/pixel_dlm_model.h"

#include <torch/types.h>

#include <cmath>
#include <string>

#include "runner/kernels/block_passes.h"
#include "runner/layers/initial_values.h"
#include "runner/models/jit/image_batch.h"

namespace lockstep {
namespace {

constexpr int64_t kConditionGrid = 16;  // 256 patches of a condition
constexpr double kNormMin = 1e-6;
constexpr double kScaleMin = 0.1;
constexpr double kScaleMax = 10.0;
constexpr double kWeightDeviation = 0.02;  // of initial values

bool is_of_condition(const std::string& name) { return name.starts_with("cond"); }

// RMS norm, computed in fp32 for any type of x.
at::Tensor rms_norm_of(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor norm = x32.square().mean(-1, true).sqrt().clamp_min(kNormMin);
  return (x32 / norm * weight).to(x.scalar_type());
}

}  // namespace

PixelDlmModel::PixelDlmModel(const PixelDlmShape& shape, at::Device device) : shape_(shape) {
  const int64_t d = shape.hidden_dim;
  const int64_t f = 4 * d;
  const int64_t patch_values = kChannels * shape.patch_size * shape.patch_size;
  pos_embed_h_ = lockstep::trained({1, shape.grid(), d}, device);
  pos_embed_w_ = lockstep::trained({1, shape.grid(), d}, device);
  patch_embed_ = lockstep::trained({d, patch_values}, device);
  for (int64_t i = 0; i < shape.depth; ++i) {
    blocks_.push_back({.qkv = lockstep::trained({3 * d, d}, device),
                       .proj = trained_linear(d, d, device),
                       .mlp_in = trained_linear(d, 2 * f, device),
                       .mlp_out = trained_linear(f, d, device),
                       .norm = lockstep::trained({d}, device),
                       .scale = trained_linear(d, d, device),
                       .shift = trained_linear(d, d, device)});
  }
  output_proj_ = trained_linear(d, patch_values, device);

  NamedTensors& p = parameters_;
  const auto of_condition = [&](at::IntArrayRef sizes) { return torch::zeros(sizes, at::TensorOptions(device)); };
  p.push_back({"pos_embed_h", pos_embed_h_});
  p.push_back({"pos_embed_w", pos_embed_w_});
  p.push_back({"cond_pos_embed_h", of_condition({1, kConditionGrid, d})});
  p.push_back({"cond_pos_embed_w", of_condition({1, kConditionGrid, d})});
  p.push_back({"patch_embed.weight", patch_embed_});
  p.push_back({"condition_embed.weight", of_condition({d, patch_values})});
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const PixelDlmBlock& block = blocks_[i];
    const std::string name = "blocks." + std::to_string(i) + ".";
    p.push_back({name + "attn.qkv.weight", block.qkv});
    add_linear(p, name + "attn.proj", block.proj);
    add_linear(p, name + "mlp.0", block.mlp_in);
    add_linear(p, name + "mlp.3", block.mlp_out);
    p.push_back({name + "adaLN.norm.weight", block.norm});
    add_linear(p, name + "adaLN.scale_mlp.1", block.scale);
    add_linear(p, name + "adaLN.shift_mlp.1", block.shift);
  }
  add_linear(p, "output_proj", output_proj_);
  const auto half = static_cast<double>(d / 2);
  frequencies_ = torch::exp(torch::arange(d / 2, torch::kFloat32) * (-std::log(10000.0) / (half - 1.0))).to(device);
}

void PixelDlmModel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    if (name.ends_with(".bias")) {
      tensor.zero_();
    } else if (name.ends_with("norm.weight")) {
      tensor.fill_(1.0);
    } else {
      tensor.copy_(InitialValues(seed, i).normal(tensor.sizes(), kWeightDeviation));
    }
  }
}

NamedTensors PixelDlmModel::trained() const {
  NamedTensors list;
  for (const NamedTensor& parameter : parameters_) {
    if (!is_of_condition(parameter.name)) list.push_back(parameter);
  }
  return list;
}

NamedTensors PixelDlmModel::buffers() const {
  NamedTensors list = {{"time_embed.emb", frequencies_}};
  for (const NamedTensor& parameter : parameters_) {
    if (is_of_condition(parameter.name)) list.push_back(parameter);
  }
  return list;
}

at::Tensor PixelDlmModel::attention(const PixelDlmBlock& block, const at::Tensor& x_BSD,
                                    const at::Tensor& attended_B11S) const {
  const int64_t a = shape_.num_heads;
  const auto qkv_BASE =
      at::linear(x_BSD, block.qkv).unflatten(-1, {3, a, shape_.hidden_dim / a}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor out_BASE = at::scaled_dot_product_attention(qkv_BASE[0], qkv_BASE[1], qkv_BASE[2], attended_B11S);
  return block.proj(out_BASE.transpose(1, 2).flatten(2));
}

at::Tensor PixelDlmModel::operator()(const at::Tensor& z_BCHH, const at::Tensor& t_B,
                                     const at::Tensor& is_token_BHH) const {
  const int64_t p = shape_.patch_size;
  const int64_t g = shape_.grid();
  const at::Tensor filled_BS = is_token_BHH.to(at::kFloat).reshape({-1, g, p, g, p}).mean({2, 4}).flatten(1) > 0.5;
  // A picture without any filled patch attends to all patches, so that the softmax is defined; its output is 0 anyway.
  const at::Tensor attended_B11S = (filled_BS | ~filled_BS.any(1, true)).unsqueeze(1).unsqueeze(1);

  const at::Tensor angles_BE = torch::outer(t_B.to(at::kFloat), frequencies_);
  const at::Tensor condition_BD = torch::silu(torch::cat({torch::sin(angles_BE), torch::cos(angles_BE)}, 1));
  const at::Tensor positions_1SD = (pos_embed_h_.unsqueeze(2) + pos_embed_w_.unsqueeze(1)).flatten(1, 2);
  at::Tensor x_BSD = at::linear(patches_of(z_BCHH, p), patch_embed_) + positions_1SD;
  for (const PixelDlmBlock& block : blocks_) {
    const at::Tensor scale_B1D = (block.scale(condition_BD) + 1.0).clamp(kScaleMin, kScaleMax).unsqueeze(1);
    const at::Tensor shift_B1D = block.shift(condition_BD).unsqueeze(1);
    const auto adapted = [&](const at::Tensor& x) { return rms_norm_of(x, block.norm) * scale_B1D + shift_B1D; };
    x_BSD = x_BSD + attention(block, adapted(x_BSD), attended_B11S);
    x_BSD = x_BSD + block.mlp_out(swiglu(block.mlp_in(adapted(x_BSD))));
  }
  const at::Tensor out_BSF = output_proj_(x_BSD) * filled_BS.unsqueeze(-1);
  return out_BSF.reshape({-1, g, g, kChannels, p, p})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({-1, kChannels, g * p, g * p});
}

double PixelDlmModel::flops_per_image() const {
  const auto d = static_cast<double>(shape_.hidden_dim);
  const auto s = static_cast<double>(shape_.grid() * shape_.grid());
  const auto patch_values = static_cast<double>(kChannels * shape_.patch_size * shape_.patch_size);
  const double of_block = s * (4.0 * d * d + 12.0 * d * d + 2.0 * s * d) + 2.0 * d * d;
  return 2.0 * (static_cast<double>(shape_.depth) * of_block + 2.0 * s * d * patch_values);
}

}  // namespace lockstep
