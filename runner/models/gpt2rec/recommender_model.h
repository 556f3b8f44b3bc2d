// RecommenderModel: a score for a user and a film, from embeddings of their ids and vectors of their texts.
//
// Role: the trained layers beside GPT-2, by the guide's names ("user_fusion.meta_v.weight"). With a single text the
// guide's attention over texts has a softmax over one key, which is 1: what is left of a fusion is
// LN(W_o [id ; W_v meta] + id), where meta = W_p text. Its other layers change nothing and are not here; `unused` has
// their initial values for files that the guide's code loads.
// Threads: one. Shapes: B samples, N films each, W width of a text's vector, D embed_dim, F width of a side: D, or 2D
// without attention; H = 128 values of the first hidden layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "runner/layers/dropouts.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct RecommenderShape {
  int64_t num_users = 0;
  int64_t num_items = 0;
  int64_t embed_dim = 64;
  int64_t text_width = 0;
  bool use_attention = true;
  double dropout = 0.2;
};

// A linear layer: y = x Wᵀ + b.
struct RecommenderLinear {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out]
};

// Vectors of texts, and which of them belongs to whom.
struct TextRows {
  at::Tensor vectors_TW;
  at::Tensor rows_B;  // int64, rows of vectors_TW
};

class RecommenderModel {
 public:
  RecommenderModel(const RecommenderShape& shape, at::Device device);

  void initialize(uint64_t seed);
  // Trainable leaves, in a fixed order.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  // Tensors of the guide's module that reach no score, with their initial values, on the CPU.
  [[nodiscard]] NamedTensors unused(uint64_t seed) const;

  // ids_B int64 → [B, F].
  [[nodiscard]] at::Tensor users(const at::Tensor& ids_B, const TextRows& texts) const;
  [[nodiscard]] at::Tensor items(const at::Tensor& ids_B, const TextRows& texts) const;
  // Of all films, the rows of `texts` being theirs. An embedding that was never trained is noise: a film that is not
  // among `known_K` has the mean of theirs. → [I, F].
  [[nodiscard]] at::Tensor all_items(const at::Tensor& known_K, const TextRows& texts) const;
  // Of those who have no embedding of their own: with the mean of those of `known_K`. vectors_BW [B, W] → [B, F].
  [[nodiscard]] at::Tensor users_unseen(const at::Tensor& known_K, const at::Tensor& vectors_BW) const;
  [[nodiscard]] at::Tensor items_unseen(const at::Tensor& known_K, const at::Tensor& vectors_BW) const;
  // The first layer of the score network is a sum of a user's part and a film's: each is computed once.
  [[nodiscard]] at::Tensor user_part(const at::Tensor& users_BF) const;  // [B, H]
  [[nodiscard]] at::Tensor item_part(const at::Tensor& items_NF) const;  // [N, H], with the bias
  // What follows, from the sum: [.., H] → [..].
  [[nodiscard]] at::Tensor score(const at::Tensor& sum, Dropouts& dropouts) const;

 private:
  // A fusion of one side.
  struct Fusion {
    RecommenderLinear value;  // meta_v, D → D
    RecommenderLinear out;    // 2D → D
    at::Tensor norm_weight;   // [D]
    at::Tensor norm_bias;
  };
  struct Side {
    at::Tensor embedding;          // [ids, D]
    RecommenderLinear projection;  // W → D
    Fusion fusion;
  };

  [[nodiscard]] at::Tensor joined(const Side& side, const at::Tensor& id_BD, const TextRows& texts) const;
  [[nodiscard]] at::Tensor unseen(const Side& side, const at::Tensor& known_K, const at::Tensor& vectors_BW) const;

  RecommenderShape shape_;
  Side user_;
  Side item_;
  RecommenderLinear first_;   // 2F → H
  RecommenderLinear second_;  // H → 64
  RecommenderLinear last_;    // 64 → 1
  NamedTensors parameters_;
};

}  // namespace lockstep
