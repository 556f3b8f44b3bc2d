#include "runner/models/sasrec/sasrec_model.h"

#include <torch/types.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <string>

#include "runner/base/check.h"
#include "runner/base/philox.h"

namespace lockstep {
namespace {

constexpr double kNormEps = 1e-8;
constexpr int64_t kPadding = 0;

// Values of one parameter: element i depends on (seed, index of the parameter, i) alone.
class InitialValues {
 public:
  InitialValues(uint64_t seed, size_t parameter)
      : stream_{seed, static_cast<uint32_t>(RandomPlace::kInit), static_cast<uint32_t>(parameter), 0} {}

  // Box-Muller: each block gives two pairs of normals.
  [[nodiscard]] at::Tensor normal(at::IntArrayRef sizes, double deviation) const {
    return fill(sizes, [&](const Philox4& words, float* out) {
      for (int pair = 0; pair < 2; ++pair) {
        const double radius = std::sqrt(-2.0 * std::log(unit_above_zero(words.x[2 * pair]))) * deviation;
        const double angle = 2.0 * std::numbers::pi * unit_above_zero(words.x[2 * pair + 1]);
        out[2 * pair] = static_cast<float>(radius * std::cos(angle));
        out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
      }
    });
  }

  [[nodiscard]] at::Tensor uniform(at::IntArrayRef sizes, double bound) const {
    return fill(sizes, [&](const Philox4& words, float* out) {
      for (int i = 0; i < 4; ++i) out[i] = static_cast<float>((2.0 * unit_above_zero(words.x[i]) - 1.0) * bound);
    });
  }

 private:
  static double unit_above_zero(uint32_t word) { return (static_cast<double>(word) + 1.0) / 4294967296.0; }

  template <typename Draw>
  [[nodiscard]] at::Tensor fill(at::IntArrayRef sizes, const Draw& draw) const {
    at::Tensor values = at::empty(sizes, at::kFloat);
    float* const out = values.data_ptr<float>();
    const int64_t n = values.numel();
    for (int64_t first = 0; first < n; first += 4) {
      float four[4];
      draw(stream_.block(static_cast<uint32_t>(first / 4)), four);
      for (int64_t i = first; i < std::min(first + 4, n); ++i) out[i] = four[i - first];
    }
    return values;
  }

  PhiloxStream stream_;
};

// Fans as torch counts them: [out, in, receptive field …].
double xavier_normal_deviation(const at::Tensor& parameter) {
  const int64_t field = parameter.numel() / (parameter.size(0) * parameter.size(1));
  return std::sqrt(2.0 / static_cast<double>((parameter.size(0) + parameter.size(1)) * field));
}

at::Tensor initial_value(const NamedTensor& parameter, const InitialValues& values, int64_t hidden_units) {
  const std::string& name = parameter.name;
  const at::Tensor& tensor = parameter.tensor;
  if (tensor.dim() >= 2) return values.normal(tensor.sizes(), xavier_normal_deviation(tensor));
  if (name.find("layernorm") != std::string::npos) {
    return name.ends_with(".weight") ? at::ones(tensor.sizes()) : at::zeros(tensor.sizes());
  }
  if (name.find("conv") != std::string::npos) {
    return values.uniform(tensor.sizes(), 1.0 / std::sqrt(static_cast<double>(hidden_units)));
  }
  return at::zeros(tensor.sizes());
}

}  // namespace

class SasrecModel::Dropouts {
 public:
  Dropouts() = default;
  Dropouts(double rate, const DropoutKey& key) : rate_(rate), key_(key) {}

  at::Tensor operator()(const at::Tensor& x) {
    if (!key_) return x;
    const at::Tensor out = philox_dropout(x, rate_, *key_);
    ++key_->layer;
    return out;
  }

 private:
  double rate_ = 0.0;
  std::optional<DropoutKey> key_;
};

SasrecModel::SasrecModel(const SasrecShape& shape, at::Device device) : shape_(shape) {
  LOCKSTEP_CHECK(shape.hidden_units % shape.num_heads == 0, "num_heads must divide hidden_units");
  const int64_t d = shape.hidden_units;
  const auto trained = [&](at::IntArrayRef sizes) {
    return at::zeros(sizes, at::TensorOptions(at::kFloat).device(device)).requires_grad_();
  };
  const auto norm = [&] { return Norm{trained({d}), trained({d})}; };
  item_emb_ = trained({shape.num_items + 1, d});
  pos_emb_ = trained({shape.maxlen + 1, d});
  for (int64_t i = 0; i < shape.num_blocks; ++i) {
    blocks_.push_back(Block{.attention_norm = norm(),
                            .in_proj_weight = trained({3 * d, d}),
                            .in_proj_bias = trained({3 * d}),
                            .out_proj_weight = trained({d, d}),
                            .out_proj_bias = trained({d}),
                            .forward_norm = norm(),
                            .conv1_weight = trained({d, d, 1}),
                            .conv1_bias = trained({d}),
                            .conv2_weight = trained({d, d, 1}),
                            .conv2_bias = trained({d})});
  }
  last_norm_ = norm();
  positions_T_ = at::arange(1, shape.maxlen + 1, at::TensorOptions(at::kLong).device(device));
  causal_mask_TT_ = at::full({shape.maxlen, shape.maxlen}, -std::numeric_limits<double>::infinity(),
                             at::TensorOptions(at::kFloat).device(device))
                        .triu(1);
  name_parameters();
}

void SasrecModel::name_parameters() {
  const auto add = [this](std::string name, const at::Tensor& tensor) {
    parameters_.push_back(NamedTensor{std::move(name), tensor});
  };
  // Each kind of layer is a list over the blocks, as in the PyTorch implementation.
  const auto for_each_block = [this](const std::string& list, const auto& add_block) {
    for (size_t i = 0; i < blocks_.size(); ++i) add_block(list + "." + std::to_string(i), blocks_[i]);
  };
  add("item_emb.weight", item_emb_);
  add("pos_emb.weight", pos_emb_);
  for_each_block("attention_layernorms", [&](const std::string& name, const Block& block) {
    add(name + ".weight", block.attention_norm.weight);
    add(name + ".bias", block.attention_norm.bias);
  });
  for_each_block("attention_layers", [&](const std::string& name, const Block& block) {
    add(name + ".in_proj_weight", block.in_proj_weight);
    add(name + ".in_proj_bias", block.in_proj_bias);
    add(name + ".out_proj.weight", block.out_proj_weight);
    add(name + ".out_proj.bias", block.out_proj_bias);
  });
  for_each_block("forward_layernorms", [&](const std::string& name, const Block& block) {
    add(name + ".weight", block.forward_norm.weight);
    add(name + ".bias", block.forward_norm.bias);
  });
  for_each_block("forward_layers", [&](const std::string& name, const Block& block) {
    add(name + ".conv1.weight", block.conv1_weight);
    add(name + ".conv1.bias", block.conv1_bias);
    add(name + ".conv2.weight", block.conv2_weight);
    add(name + ".conv2.bias", block.conv2_bias);
  });
  add("last_layernorm.weight", last_norm_.weight);
  add("last_layernorm.bias", last_norm_.bias);
}

void SasrecModel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    tensor.copy_(initial_value(parameters_[i], InitialValues(seed, i), shape_.hidden_units));
  }
  item_emb_[kPadding].zero_();
  pos_emb_[kPadding].zero_();
}

at::Tensor SasrecModel::encode(const at::Tensor& seq_BT) const {
  Dropouts off;
  return encode_embedded(seq_BT, at::embedding(item_emb_, seq_BT, kPadding), off);
}

at::Tensor SasrecModel::train_logits(const at::Tensor& ids_3BT, const DropoutKey& key) const {
  Dropouts dropouts(shape_.dropout_rate, key);
  // A split, unlike two selections, costs one copy in the backward pass.
  const auto roles = at::embedding(item_emb_, ids_3BT, kPadding).split_with_sizes({1, 2}, 0);
  const at::Tensor h_BTD = encode_embedded(ids_3BT[0], roles[0].squeeze(0), dropouts);
  return at::mul(roles[1], h_BTD.unsqueeze(0)).sum(-1, /*keepdim=*/false, at::kFloat);
}

at::Tensor SasrecModel::encode_embedded(const at::Tensor& seq_BT, const at::Tensor& items_BTD,
                                        Dropouts& dropouts) const {
  const bool original = shape_.form == SasrecForm::kOriginal;
  const at::Tensor used_BT = seq_BT.ne(kPadding);
  const at::Tensor places_BTD = at::embedding(pos_emb_, at::mul(positions_T_, used_BT), kPadding);
  const at::Tensor used_BT1 = original ? used_BT.unsqueeze(-1).to(items_BTD.scalar_type()) : at::Tensor();

  at::Tensor x_BTD = dropouts(at::add(places_BTD, items_BTD, std::sqrt(static_cast<double>(shape_.hidden_units))));
  for (const Block& block : blocks_) {
    switch (shape_.form) {
      case SasrecForm::kPostNorm:
        x_BTD = normalize(block.attention_norm, x_BTD + attend(block, x_BTD, x_BTD, dropouts));
        x_BTD = normalize(block.forward_norm, x_BTD + feed_forward(block, x_BTD, dropouts));
        break;
      case SasrecForm::kPreNorm: {
        const at::Tensor normed_BTD = normalize(block.attention_norm, x_BTD);
        x_BTD = x_BTD + attend(block, normed_BTD, normed_BTD, dropouts);
        x_BTD = x_BTD + feed_forward(block, normalize(block.forward_norm, x_BTD), dropouts);
        break;
      }
      case SasrecForm::kOriginal: {
        const at::Tensor query_BTD = normalize(block.attention_norm, x_BTD);
        x_BTD = normalize(block.forward_norm, query_BTD + attend(block, query_BTD, x_BTD, dropouts));
        x_BTD = (x_BTD + feed_forward(block, x_BTD, dropouts)) * used_BT1;
        break;
      }
    }
  }
  return normalize(last_norm_, x_BTD);
}

// As torch's MultiheadAttention with a causal mask and no key padding mask: padding on the left is attended to.
at::Tensor SasrecModel::attend(const Block& block, const at::Tensor& query_BTD, const at::Tensor& memory_BTD,
                               Dropouts& dropouts) const {
  const int64_t b = query_BTD.size(0);
  const int64_t t = shape_.maxlen;
  const int64_t d = shape_.hidden_units;
  const int64_t h = shape_.num_heads;
  const auto split_heads = [&](const at::Tensor& x_BTD) {  // one head needs no copy
    return x_BTD.view({b, t, h, d / h}).transpose(1, 2).reshape({b * h, t, d / h});
  };
  std::vector<at::Tensor> qkv;
  if (query_BTD.is_same(memory_BTD)) {
    qkv = at::linear(query_BTD, block.in_proj_weight, block.in_proj_bias).split(d, -1);
  } else {
    const auto weights = block.in_proj_weight.split({d, 2 * d});
    const auto biases = block.in_proj_bias.split({d, 2 * d});
    const auto kv = at::linear(memory_BTD, weights[1], biases[1]).split(d, -1);
    qkv = {at::linear(query_BTD, weights[0], biases[0]), kv[0], kv[1]};
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(d / h));
  const at::Tensor scores_NTT = at::baddbmm(causal_mask_TT_.to(qkv[0].scalar_type()), split_heads(qkv[0]),
                                            split_heads(qkv[1]).transpose(1, 2), /*beta=*/1.0, scale);
  at::Tensor attention_NTT = at::softmax(scores_NTT, -1);
  attention_NTT = dropouts(attention_NTT.view({b, h, t, t})).view({b * h, t, t});  // the sample is dimension 0
  const at::Tensor heads_NTE = at::bmm(attention_NTT, split_heads(qkv[2]));
  const at::Tensor joined_BTD = heads_NTE.view({b, h, t, d / h}).transpose(1, 2).reshape({b, t, d});
  return at::linear(joined_BTD, block.out_proj_weight, block.out_proj_bias);
}

at::Tensor SasrecModel::feed_forward(const Block& block, const at::Tensor& x_BTD, Dropouts& dropouts) const {
  const at::Tensor inner_BTD = at::relu(dropouts(at::linear(x_BTD, block.conv1_weight.squeeze(-1), block.conv1_bias)));
  return dropouts(at::linear(inner_BTD, block.conv2_weight.squeeze(-1), block.conv2_bias));
}

at::Tensor SasrecModel::normalize(const Norm& norm, const at::Tensor& x_BTD) const {
  return at::layer_norm(x_BTD, {shape_.hidden_units}, norm.weight, norm.bias, kNormEps);
}

}  // namespace lockstep
