#include "runner/models/gpt2rec/recommender_model.h"

#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "runner/kernels/pair_scores.h"
#include "runner/layers/initial_values.h"

namespace lockstep {
namespace {

constexpr int64_t kFirstHidden = 128;
constexpr int64_t kSecondHidden = 64;
constexpr int64_t kContrastWidth = 32;
constexpr double kGain = 0.1;  // factors of the initial values
constexpr double kLastGain = 0.01;
// The numbers of the parameters for InitialValues; the text encoder's are below these.
constexpr size_t kFirstNumber = 0x10000;
constexpr size_t kFirstUnusedNumber = 0x20000;

// The projected texts of the rows. Projects before or after selecting the rows, whichever computes less.
at::Tensor projected(const Linear& layer, const TextRows& texts) {
  if (texts.vectors_TW.size(0) <= texts.rows_B.size(0)) return layer(texts.vectors_TW).index_select(0, texts.rows_B);
  return layer(texts.vectors_TW.index_select(0, texts.rows_B));
}

}  // namespace

RecommenderModel::RecommenderModel(const RecommenderShape& shape, at::Device device) : shape_(shape) {
  const int64_t d = shape.embed_dim;
  const auto make_side = [&](int64_t ids) {
    Side side{.embedding = trained({ids, d}, device),
              .projection = trained_linear(shape.text_width, d, device),
              .fusion = {}};
    if (shape.use_attention) {
      side.fusion = {.value = trained_linear(d, d, device),
                     .out = trained_linear(2 * d, d, device),
                     .norm = trained_layer_norm(d, device)};
    }
    return side;
  };
  user_ = make_side(shape.num_users);
  item_ = make_side(shape.num_items);
  const int64_t width = shape.use_attention ? d : 2 * d;
  first_ = trained_linear(2 * width, kFirstHidden, device);
  second_ = trained_linear(kFirstHidden, kSecondHidden, device);
  last_ = trained_linear(kSecondHidden, 1, device);

  parameters_ = {{"user_emb.weight", user_.embedding}, {"item_emb.weight", item_.embedding}};
  add_linear(parameters_, "user_meta_proj", user_.projection);
  add_linear(parameters_, "item_meta_proj", item_.projection);
  if (shape.use_attention) {
    for (const auto& [name, side] : {std::pair("user_fusion", &user_), std::pair("item_fusion", &item_)}) {
      add_linear(parameters_, std::string(name) + ".meta_v", side->fusion.value);
      add_linear(parameters_, std::string(name) + ".out_proj", side->fusion.out);
      add_layer_norm(parameters_, std::string(name) + ".norm", side->fusion.norm);
    }
  }
  add_linear(parameters_, "score_mlp.0", first_);
  add_linear(parameters_, "score_mlp.3", second_);
  add_linear(parameters_, "score_mlp.6", last_);
}

void RecommenderModel::initialize(uint64_t seed) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    const at::Tensor& tensor = parameters_[i].tensor;
    if (name.ends_with("norm.weight")) {
      tensor.fill_(1.0);
    } else if (tensor.dim() == 1) {
      tensor.zero_();
    } else {
      const bool is_embedding = name.ends_with("_emb.weight");
      const double gain = is_embedding ? 1.0 : name == "score_mlp.6.weight" ? kLastGain : kGain;
      tensor.copy_(InitialValues(seed, kFirstNumber + i).xavier_uniform(tensor.sizes()) * gain);
    }
  }
}

NamedTensors RecommenderModel::unused(uint64_t seed) const {
  const int64_t d = shape_.embed_dim;
  NamedTensors list;
  const auto add = [&](const std::string& name, int64_t in, int64_t out) {
    const InitialValues values(seed, kFirstUnusedNumber + list.size());
    list.push_back({name + ".weight", values.xavier_uniform({out, in}) * kGain});
    list.push_back({name + ".bias", at::zeros({out})});
  };
  if (shape_.use_attention) {
    for (const std::string fusion : {"user_fusion", "item_fusion"}) {
      for (const char* const layer : {"id_q", "id_k", "id_v", "meta_q", "meta_k"}) add(fusion + "." + layer, d, d);
    }
  }
  add("contrastive_proj.0", 2 * d, d);
  add("contrastive_proj.2", d, kContrastWidth);
  return list;
}

at::Tensor RecommenderModel::joined(const Side& side, const at::Tensor& id_BD, const TextRows& texts) const {
  if (!shape_.use_attention) {
    return at::cat({id_BD, projected(side.projection, texts).to(id_BD.scalar_type())}, 1);
  }
  // The three linear layers that a text passes through are combined into one: W_o,meta W_v W_p.
  const auto out_id_and_meta = side.fusion.out.weight.split(shape_.embed_dim, 1);
  const at::Tensor& out_id_DD = out_id_and_meta[0];
  const at::Tensor& out_meta_DD = out_id_and_meta[1];
  const Linear meta{.weight = out_meta_DD.mm(side.fusion.value.weight.mm(side.projection.weight)),
                    .bias = at::linear(side.fusion.value(side.projection.bias), out_meta_DD, side.fusion.out.bias)};
  return side.fusion.norm(at::linear(id_BD, out_id_DD) + projected(meta, texts) + id_BD);
}

at::Tensor RecommenderModel::users(const at::Tensor& ids_B, const TextRows& texts) const {
  return joined(user_, at::embedding(user_.embedding, ids_B), texts);
}

at::Tensor RecommenderModel::items(const at::Tensor& ids_B, const TextRows& texts) const {
  return joined(item_, at::embedding(item_.embedding, ids_B), texts);
}

at::Tensor RecommenderModel::all_items(const at::Tensor& known_K, const TextRows& texts) const {
  const at::Tensor known_KD = item_.embedding.index_select(0, known_K);
  const at::Tensor means_ID = known_KD.mean(0, /*keepdim=*/true).expand_as(item_.embedding);
  return joined(item_, means_ID.index_copy(0, known_K, known_KD), texts);
}

at::Tensor RecommenderModel::unseen(const Side& side, const at::Tensor& known_K, const at::Tensor& vectors_BW) const {
  const at::Tensor mean_1D = side.embedding.index_select(0, known_K).mean(0, /*keepdim=*/true);
  const at::Tensor rows_B = at::arange(vectors_BW.size(0), known_K.options());
  return joined(side, mean_1D.expand({vectors_BW.size(0), -1}), {.vectors_TW = vectors_BW, .rows_B = rows_B});
}

at::Tensor RecommenderModel::users_unseen(const at::Tensor& known_K, const at::Tensor& vectors_BW) const {
  return unseen(user_, known_K, vectors_BW);
}

at::Tensor RecommenderModel::items_unseen(const at::Tensor& known_K, const at::Tensor& vectors_BW) const {
  return unseen(item_, known_K, vectors_BW);
}

at::Tensor RecommenderModel::user_term(const at::Tensor& users_BF) const {
  const int64_t width = users_BF.size(1);
  return at::linear(users_BF, first_.weight.narrow(1, 0, width));
}

at::Tensor RecommenderModel::item_term(const at::Tensor& items_NF) const {
  const int64_t width = items_NF.size(1);
  return at::linear(items_NF, first_.weight.narrow(1, width, width), first_.bias);
}

at::Tensor RecommenderModel::score(const at::Tensor& sum, Dropouts& dropouts) const {
  const at::Tensor first = dropouts.of_relu(sum);
  const at::Tensor second = dropouts.of_relu(second_(first));
  return last_(second).squeeze(-1);
}

at::Tensor RecommenderModel::scores(const at::Tensor& user_terms_UH, const at::Tensor& item_terms_IH) const {
  return pair_scores(
      user_terms_UH, item_terms_IH,
      {.second_SH = second_.weight, .second_bias_S = second_.bias, .last_1S = last_.weight, .last_bias_1 = last_.bias});
}

}  // namespace lockstep
