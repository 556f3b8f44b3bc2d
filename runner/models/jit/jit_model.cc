#include "runner/models/jit/jit_model.h"

#include <torch/types.h>

#include <cmath>
#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/kernels/block_passes.h"
#include "runner/layers/initial_values.h"
#include "runner/models/jit/image_batch.h"

namespace lockstep {
namespace {

constexpr int64_t kTimeFrequencies = 128;
constexpr double kTheta = 10000.0;
constexpr double kEmbeddingDeviation = 0.02;  // of initial values

// θ^(−k/n) for k in [0, n).
at::Tensor frequencies(int64_t n) {
  return torch::exp(torch::arange(n, torch::kFloat64) * (-std::log(kTheta) / static_cast<double>(n)));
}

// The places of a grid, row by row: [grid², 2] as (row, column).
at::Tensor grid_positions(int64_t grid) {
  const at::Tensor line = torch::arange(grid, torch::kFloat64);
  const auto at_both = torch::meshgrid({line, line}, "ij");
  return torch::stack({at_both[0].flatten(), at_both[1].flatten()}, 1);
}

// Position embedding [grid², d]: the first half of d encodes the column, the second the row, as [sin | cos] each.
at::Tensor sin_cos_embedding(int64_t grid, int64_t d) {
  const at::Tensor positions_S2 = grid_positions(grid);
  const at::Tensor omega = frequencies(d / 4);
  const auto of_axis = [&](int64_t axis) {
    const at::Tensor angles = torch::outer(positions_S2.select(1, axis), omega);
    return torch::cat({torch::sin(angles), torch::cos(angles)}, 1);
  };
  return torch::cat({of_axis(1), of_axis(0)}, 1).to(torch::kFloat32);
}

// The tokens' values, to which each layer adds its change. The last change is added when the sum is normed for the next
// layer, in one pass.
class ResidualStream {
 public:
  explicit ResidualStream(const at::Tensor& x_BND) : x_BND_(x_BND) {}

  void add(const at::Tensor& gate_BD, const at::Tensor& change_BND) {
    LOCKSTEP_CHECK(!change_BND_.defined(), "the last change has been added");
    gate_BD_ = gate_BD;
    change_BND_ = change_BND;
  }
  at::Tensor normed(const at::Tensor& weight_D, const at::Tensor& shift_BD, const at::Tensor& scale_BD) {
    if (!change_BND_.defined()) return modulated_rms_norm(x_BND_, weight_D, shift_BD, scale_BD);
    const NormedSum both = normed_gated_sum(x_BND_, gate_BD_, change_BND_, weight_D, shift_BD, scale_BD);
    x_BND_ = both.sum_BND;
    change_BND_.reset();
    return both.normed_BND;
  }
  [[nodiscard]] at::Tensor value() const {
    return change_BND_.defined() ? x_BND_ + gate_BD_.unsqueeze(1) * change_BND_ : x_BND_;
  }

 private:
  at::Tensor x_BND_;
  at::Tensor gate_BD_;
  at::Tensor change_BND_;  // undefined if there is none to be added
};

// The bias is added in SwiGLU's own pass where that saves one.
at::Tensor swiglu_of(const Linear& gate_and_value, const at::Tensor& x_BND) {
  if (!gate_and_value.cast_weight.defined()) return swiglu(gate_and_value(x_BND));
  return swiglu(gate_and_value.without_bias(x_BND), gate_and_value.bias);
}

// The blocks with their layers cast for the products, those of adaLN aside, which are applied together.
std::vector<JitBlock> cast_for_products(std::vector<JitBlock> blocks) {
  std::vector<Linear*> layers;
  for (JitBlock& block : blocks) layers.insert(layers.end(), {&block.qkv, &block.proj, &block.w12, &block.w3});
  if (!layers.empty()) cast_together(layers);
  return blocks;
}

}  // namespace

JitModel::JitModel(const JitShape& shape, at::Device device) : shape_(shape) {
  const int64_t d = shape.hidden_dim;
  const int64_t e = d / shape.num_heads;
  const int64_t f = shape.swiglu_dim();
  const int64_t patch_values = kChannels * shape.patch_size * shape.patch_size;
  proj1_ = trained({shape.bottleneck, kChannels, shape.patch_size, shape.patch_size}, device);
  proj2_ = {.weight = trained({d, shape.bottleneck, 1, 1}, device), .bias = trained({d}, device)};
  time_mlp_0_ = trained_linear(2 * kTimeFrequencies, d, device);
  time_mlp_2_ = trained_linear(d, d, device);
  class_embedding_ = trained({shape.num_classes + 1, d}, device);
  in_context_posemb_ = trained({1, shape.in_context_tokens, d}, device);
  for (int64_t i = 0; i < shape.depth; ++i) {
    blocks_.push_back({.norm1 = trained({d}, device),
                       .qkv = trained_linear(d, 3 * d, device),
                       .q_norm = trained({e}, device),
                       .k_norm = trained({e}, device),
                       .proj = trained_linear(d, d, device),
                       .norm2 = trained({d}, device),
                       .w12 = trained_linear(d, 2 * f, device),
                       .w3 = trained_linear(f, d, device),
                       .adaLN_modulation = trained_linear(d, 6 * d, device)});
  }
  final_norm_ = trained({d}, device);
  final_adaLN_modulation_ = trained_linear(d, 2 * d, device);
  final_linear_ = trained_linear(d, patch_values, device);

  NamedTensors& p = parameters_;
  p.push_back({"net.x_embedder.proj1.weight", proj1_});
  add_linear(p, "net.x_embedder.proj2", proj2_);
  add_linear(p, "net.t_embedder.mlp.0", time_mlp_0_);
  add_linear(p, "net.t_embedder.mlp.2", time_mlp_2_);
  p.push_back({"net.y_embedder.embedding_table.weight", class_embedding_});
  p.push_back({"net.in_context_posemb", in_context_posemb_});
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const JitBlock& block = blocks_[i];
    const std::string name = "net.blocks." + std::to_string(i) + ".";
    p.push_back({name + "norm1.weight", block.norm1});
    add_linear(p, name + "attn.qkv", block.qkv);
    p.push_back({name + "attn.q_norm.weight", block.q_norm});
    p.push_back({name + "attn.k_norm.weight", block.k_norm});
    add_linear(p, name + "attn.proj", block.proj);
    p.push_back({name + "norm2.weight", block.norm2});
    add_linear(p, name + "mlp.w12", block.w12);
    add_linear(p, name + "mlp.w3", block.w3);
    add_linear(p, name + "adaLN_modulation.1", block.adaLN_modulation);
  }
  p.push_back({"net.final_layer.norm_final.weight", final_norm_});
  add_linear(p, "net.final_layer.adaLN_modulation.1", final_adaLN_modulation_);
  add_linear(p, "net.final_layer.linear", final_linear_);

  // Made here and not at each step: the host would wait for the device until a copy from its memory is done.
  time_frequencies_ = frequencies(kTimeFrequencies).to(torch::kFloat32).to(device);
  pos_embed_SD_ = sin_cos_embedding(shape.grid(), d).to(device);
  // Each axis has E/4 frequencies, and each frequency rotates a pair of adjacent elements.
  const at::Tensor positions_S2 = grid_positions(shape.grid());
  const auto of_axis = [&](int64_t axis) {
    return torch::outer(positions_S2.select(1, axis), frequencies(e / 4)).repeat_interleave(2, 1);
  };
  const at::Tensor angles_SE = torch::cat({of_axis(0), of_axis(1)}, 1);
  const auto rotation = [&](const at::Tensor& angles) {
    return HeadRotation{.cos_NE = torch::cos(angles).to(torch::kFloat32).to(device),
                        .sin_NE = torch::sin(angles).to(torch::kFloat32).to(device)};
  };
  patches_ = rotation(angles_SE);
  with_context_ = rotation(torch::cat({torch::zeros({shape.in_context_tokens, e}, torch::kFloat64), angles_SE}));
}

void JitModel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    const at::Tensor& tensor = parameters_[i].tensor;
    const InitialValues draw(seed, i);
    // These begin at 0, so that at first each block adds nothing and the prediction is 0.
    const bool begins_at_zero = name.find("adaLN_modulation") != std::string::npos ||
                                name.starts_with("net.final_layer.linear") || name.ends_with(".bias");
    const bool is_embedding = name.find("t_embedder") != std::string::npos ||
                              name.find("y_embedder") != std::string::npos || name.ends_with("posemb");
    if (begins_at_zero) {
      tensor.zero_();
    } else if (is_embedding) {
      tensor.copy_(draw.normal(tensor.sizes(), kEmbeddingDeviation));
    } else if (tensor.dim() == 1) {
      tensor.fill_(1.0);  // norms
    } else {
      const at::Tensor flat = tensor.flatten(1);
      tensor.copy_(draw.xavier_uniform(flat.sizes()).view(tensor.sizes()));
    }
  }
}

at::Tensor JitModel::embed_times(const at::Tensor& t_B) const {
  const at::Tensor angles = torch::outer(t_B, time_frequencies_);
  return time_mlp_2_(torch::silu(time_mlp_0_(torch::cat({torch::cos(angles), torch::sin(angles)}, 1))));
}

// A convolution whose stride equals its kernel size, computed as a matrix product with the patches.
at::Tensor JitModel::embed_patches(const at::Tensor& z_BCHH) const {
  const at::Tensor narrow = at::linear(patches_of(z_BCHH, shape_.patch_size), proj1_.flatten(1));
  return at::linear(narrow, proj2_.weight.flatten(1), proj2_.bias);
}

at::Tensor JitModel::attention(const JitBlock& block, const at::Tensor& x_BND, const HeadRotation& rotation) const {
  const Heads heads = rotated_heads(block.qkv(x_BND), block.q_norm, block.k_norm, rotation);
  const at::Tensor attended_BANE = at::scaled_dot_product_attention(heads.q_BANE, heads.k_BANE, heads.v_BANE);
  return block.proj(attended_BANE.transpose(1, 2).flatten(2));
}

at::Tensor JitModel::unpatchify(const at::Tensor& x_BSF) const {
  const int64_t p = shape_.patch_size;
  const int64_t g = shape_.grid();
  return x_BSF.reshape({-1, g, g, p, p, kChannels}).permute({0, 5, 1, 3, 2, 4}).reshape({-1, kChannels, g * p, g * p});
}

std::vector<at::Tensor> JitModel::modulations(const at::Tensor& condition_BD, bool in_one_product) const {
  std::vector<at::Tensor> modulations;
  if (!in_one_product) {
    for (const JitBlock& block : blocks_) modulations.push_back(block.adaLN_modulation(condition_BD));
    return modulations;
  }
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const JitBlock& block : blocks_) {
    weights.push_back(block.adaLN_modulation.weight);
    biases.push_back(block.adaLN_modulation.bias);
  }
  Linear all{.weight = torch::cat(weights), .bias = torch::cat(biases)};
  cast_together({&all});
  return all(condition_BD).chunk(shape_.depth, 1);
}

at::Tensor JitModel::operator()(const at::Tensor& z_BCHH, const at::Tensor& t_B, const at::Tensor& classes_B,
                                Dropouts dropouts) const {
  const at::Tensor class_BD = at::embedding(class_embedding_, classes_B);
  const at::Tensor condition_BD = torch::silu(embed_times(t_B) + class_BD);
  // One product needs a copy of all weights in one tensor; on a CPU that copy takes longer than separate products.
  const std::vector<at::Tensor> modulations_of = modulations(condition_BD, /*in_one_product=*/!condition_BD.is_cpu());
  ResidualStream x(embed_patches(z_BCHH) + pos_embed_SD_);
  const std::vector<JitBlock> blocks = cast_for_products(blocks_);
  const HeadRotation* rotation = &patches_;
  for (int64_t i = 0; i < shape_.depth; ++i) {
    const JitBlock& block = blocks[static_cast<size_t>(i)];
    if (i == shape_.in_context_start) {
      x = ResidualStream(torch::cat({class_BD.unsqueeze(1) + in_context_posemb_, x.value()}, 1));
      rotation = &with_context_;
    }
    const bool drops = i >= shape_.depth / 4 && i < 3 * shape_.depth / 4;
    const auto dropped = [&](const at::Tensor& y) { return drops ? dropouts(y) : y; };
    const auto m = modulations_of[static_cast<size_t>(i)].chunk(6, 1);
    x.add(m[2], dropped(attention(block, x.normed(block.norm1, m[0], m[1]), *rotation)));
    x.add(m[5], block.w3(dropped(swiglu_of(block.w12, x.normed(block.norm2, m[3], m[4])))));
  }
  const auto m = final_adaLN_modulation_(condition_BD).chunk(2, 1);
  at::Tensor normed_BND = x.normed(final_norm_, m[0], m[1]);
  if (shape_.in_context_start < shape_.depth) normed_BND = normed_BND.slice(1, shape_.in_context_tokens);
  return unpatchify(final_linear_(normed_BND));
}

double JitModel::flops_per_image() const {
  const auto d = static_cast<double>(shape_.hidden_dim);
  const auto f = static_cast<double>(shape_.swiglu_dim());
  const auto patches = static_cast<double>(shape_.grid() * shape_.grid());
  const auto patch_values = static_cast<double>(kChannels * shape_.patch_size * shape_.patch_size);
  double products = patches * (static_cast<double>(shape_.bottleneck) * (patch_values + d) + d * patch_values);
  for (int64_t i = 0; i < shape_.depth; ++i) {
    const double tokens =
        patches + (i >= shape_.in_context_start ? static_cast<double>(shape_.in_context_tokens) : 0.0);
    products += tokens * (4.0 * d * d + 3.0 * d * f + 2.0 * tokens * d) + 6.0 * d * d;
  }
  return 2.0 * products;
}

}  // namespace lockstep
