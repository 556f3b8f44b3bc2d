#include "runner/models/sasrec/sasrec_model.h"

#include <torch/types.h>

#include <cmath>
#include <string>

namespace lockstep {

SasrecModel::SasrecModel(const SasrecOptions& options, int64_t num_items, at::Device device)
    : SequenceModel(options, num_items, device) {
  const int64_t d = options.hidden_units;
  pos_emb_ = trained({options.maxlen + 1, d}, device);
  for (int64_t i = 0; i < options.num_blocks; ++i) {
    blocks_.push_back(Block{.attention_norm = make_norm(d, device),
                            .in_proj = trained_linear(d, 3 * d, device),
                            .out_proj = trained_linear(d, d, device),
                            .forward_norm = make_norm(d, device),
                            .forward = make_feed_forward(d, device)});
  }
  positions_T_ = at::arange(1, options.maxlen + 1, at::TensorOptions(at::kLong).device(device));
  add("item_emb.weight", item_emb_);
  add("pos_emb.weight", pos_emb_);
  add_blocks(blocks_, [this](const std::string& name, const Block& block) {
    add(name + ".in_proj_weight", block.in_proj.weight);
    add(name + ".in_proj_bias", block.in_proj.bias);
    add_linear(parameters_, name + ".out_proj", block.out_proj);
  });
  add_layer_norm(parameters_, "last_layernorm", last_norm_);
}

at::Tensor SasrecModel::initial_value(const std::string& name, at::IntArrayRef sizes,
                                      const InitialValues& values) const {
  if (sizes.size() >= 2) return values.xavier_normal(sizes);
  if (name.find("layernorm") != std::string::npos) {
    return name.ends_with(".weight") ? at::ones(sizes) : at::zeros(sizes);
  }
  if (name.find("conv") != std::string::npos) {
    return values.uniform(sizes, 1.0 / std::sqrt(static_cast<double>(options_.hidden_units)));
  }
  return at::zeros(sizes);
}

void SasrecModel::initialize(uint64_t seed) {
  SequenceModel::initialize(seed);
  const at::NoGradGuard no_grad;
  pos_emb_[kPadding].zero_();
}

at::Tensor SasrecModel::encode_embedded(const at::Tensor& items_BT, const at::Tensor& items_BTD,
                                        const at::Tensor& /*times_BT*/, Dropouts& dropouts) const {
  const bool original = options_.form() == SasrecForm::kOriginal;
  const at::Tensor used_BT = items_BT.ne(kPadding);
  const at::Tensor places_BTD = at::embedding(pos_emb_, at::mul(positions_T_, used_BT), kPadding);
  const at::Tensor used_BT1 = original ? used_BT.unsqueeze(-1).to(items_BTD.scalar_type()) : at::Tensor();

  at::Tensor x_BTD = dropouts(at::add(places_BTD, items_BTD, std::sqrt(static_cast<double>(options_.hidden_units))));
  for (const Block& block : blocks_) {
    switch (options_.form()) {
      case SasrecForm::kPostNorm:
        x_BTD = block.attention_norm(x_BTD + attend(block, x_BTD, x_BTD, dropouts));
        x_BTD = block.forward_norm(x_BTD + feed_forward(block.forward, x_BTD, dropouts));
        break;
      case SasrecForm::kPreNorm: {
        const at::Tensor normed_BTD = block.attention_norm(x_BTD);
        x_BTD = x_BTD + attend(block, normed_BTD, normed_BTD, dropouts);
        x_BTD = x_BTD + feed_forward(block.forward, block.forward_norm(x_BTD), dropouts);
        break;
      }
      case SasrecForm::kOriginal: {
        const at::Tensor query_BTD = block.attention_norm(x_BTD);
        x_BTD = block.forward_norm(query_BTD + attend(block, query_BTD, x_BTD, dropouts));
        x_BTD = (x_BTD + feed_forward(block.forward, x_BTD, dropouts)) * used_BT1;
        break;
      }
    }
  }
  return last_norm_(x_BTD);
}

// Like torch's MultiheadAttention with a causal mask and no key padding mask: positions also attend to the padding on
// the left.
at::Tensor SasrecModel::attend(const Block& block, const at::Tensor& query_BTD, const at::Tensor& memory_BTD,
                               Dropouts& dropouts) const {
  const int64_t b = query_BTD.size(0);
  const int64_t t = options_.maxlen;
  const int64_t d = options_.hidden_units;
  const int64_t h = options_.num_heads;
  const auto split_heads = [&](const at::Tensor& x_BTD) {  // copies only if there are several heads
    return x_BTD.view({b, t, h, d / h}).transpose(1, 2).reshape({b * h, t, d / h});
  };
  std::vector<at::Tensor> qkv;
  if (query_BTD.is_same(memory_BTD)) {
    qkv = block.in_proj(query_BTD).split(d, -1);
  } else {
    const auto weights = block.in_proj.weight.split({d, 2 * d});
    const auto biases = block.in_proj.bias.split({d, 2 * d});
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
  return block.out_proj(joined_BTD);
}

}  // namespace lockstep
