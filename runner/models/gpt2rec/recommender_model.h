// RecommenderModel: a score for a user and a film, from embeddings of their ids and vectors of their texts.
//
// Role: the trained layers beside GPT-2, under the guide's names ("user_fusion.meta_v.weight"). A user or film has a
// single text, so that the guide's attention over texts is a softmax over one key, which is 1. A fusion therefore
// reduces to LN(W_o [id ; W_v meta] + id), where meta = W_p text. The guide's other layers do not change the score and
// are left out; `unused` gives their initial values, for files that the guide's code loads.
// Threads: one.
// Shapes: B users or films, N films, I all films, U users, K ids with a trained embedding, T texts, W width of a text's
// vector, D embed_dim, F width of a user or film (D, or 2D without attention), H = 128 values of the first hidden
// layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "runner/layers/dropouts.h"
#include "runner/layers/layer_norm.h"
#include "runner/layers/linear.h"
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

// Vectors of texts, and which of them belongs to each user or film.
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
  // The tensors of the guide's module that do not change the score, with their initial values, on the CPU.
  [[nodiscard]] NamedTensors unused(uint64_t seed) const;

  // ids_B int64 → [B, F].
  [[nodiscard]] at::Tensor users(const at::Tensor& ids_B, const TextRows& texts) const;
  [[nodiscard]] at::Tensor items(const at::Tensor& ids_B, const TextRows& texts) const;
  // All films: [I, F]. `texts` has a row for each film. An embedding that was never trained is noise, so a film that is
  // not in known_K gets the mean of the embeddings of those in known_K.
  [[nodiscard]] at::Tensor all_items(const at::Tensor& known_K, const TextRows& texts) const;
  // New users or films, which get the mean of the embeddings of known_K. vectors_BW: the vectors of their texts.
  // Returns [B, F].
  [[nodiscard]] at::Tensor users_unseen(const at::Tensor& known_K, const at::Tensor& vectors_BW) const;
  [[nodiscard]] at::Tensor items_unseen(const at::Tensor& known_K, const at::Tensor& vectors_BW) const;
  // The first layer of the score network is linear in [user ; film], and so the sum of a user's part and a film's part.
  // Each part needs to be computed only once.
  [[nodiscard]] at::Tensor user_term(const at::Tensor& users_BF) const;  // [B, H]
  [[nodiscard]] at::Tensor item_term(const at::Tensor& items_NF) const;  // [N, H], with the bias
  // The rest of the score network, given the sum of both parts: [.., H] → [..].
  [[nodiscard]] at::Tensor score(const at::Tensor& sum, Dropouts& dropouts) const;
  // The scores of all pairs, given their parts, without dropout and gradients: [U, I], fp32.
  [[nodiscard]] at::Tensor scores(const at::Tensor& user_terms_UH, const at::Tensor& item_terms_IH) const;

 private:
  // Fuses the embeddings of id and text.
  struct Fusion {
    Linear value;  // W_v, D → D
    Linear out;    // W_o, 2D → D
    LayerNorm norm;
  };
  // The layers of the users, or those of the films.
  struct Side {
    at::Tensor embedding;  // [ids, D]
    Linear projection;     // W_p, W → D
    Fusion fusion;
  };

  [[nodiscard]] at::Tensor joined(const Side& side, const at::Tensor& id_BD, const TextRows& texts) const;
  [[nodiscard]] at::Tensor unseen(const Side& side, const at::Tensor& known_K, const at::Tensor& vectors_BW) const;

  RecommenderShape shape_;
  Side user_;
  Side item_;
  Linear first_;   // 2F → H
  Linear second_;  // H → 64
  Linear last_;    // 64 → 1
  NamedTensors parameters_;
};

}  // namespace lockstep
