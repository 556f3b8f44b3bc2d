// SasrecModel: the network of SASRec (Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018) in three
// forms.
//
// Role: maps a sequence of items to one vector per position, whose dot product with an item's embedding is that item's
// score.
// Threads: one.
// Shapes: B samples, T = maxlen positions, D = hidden_units, H heads, E = D / H, I items (0 is padding).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/layers/linear.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sequence_layers.h"
#include "runner/models/sasrec/sequence_model.h"

namespace lockstep {

class SasrecModel final : public SequenceModel {
 public:
  SasrecModel(const SasrecOptions& options, int64_t num_items, at::Device device);

  // Xavier-normal matrices and embeddings, layer norms 1 and 0, attention biases 0, feed-forward biases uniform in
  // ±1/√D, rows 0 of both embeddings 0.
  void initialize(uint64_t seed) override;
  // The sum of the squared item embeddings.
  [[nodiscard]] at::Tensor embedding_penalty() const override { return item_emb_.square().sum(); }

 private:
  struct Block {
    LayerNorm attention_norm;
    Linear in_proj;  // D → 3D: query, key, value
    Linear out_proj;
    LayerNorm forward_norm;
    FeedForward forward;
  };

  [[nodiscard]] at::Tensor encode_embedded(const at::Tensor& items_BT, const at::Tensor& items_BTD,
                                           const at::Tensor& times_BT, Dropouts& dropouts) const override;
  [[nodiscard]] at::Tensor initial_value(const std::string& name, at::IntArrayRef sizes,
                                         const InitialValues& values) const override;
  [[nodiscard]] at::Tensor attend(const Block& block, const at::Tensor& query_BTD, const at::Tensor& memory_BTD,
                                  Dropouts& dropouts) const;

  at::Tensor pos_emb_;  // [T + 1, D]
  std::vector<Block> blocks_;
  at::Tensor positions_T_;  // 1 … T
};

}  // namespace lockstep
