// TisasrecModel: the network of TiSASRec, a SASRec that also uses the time between events (Li, Wang and McAuley, "Time
// Interval Aware Self-Attention for Sequential Recommendation", WSDM 2020). It loads the trained weights of the public
// PyTorch implementation.
//
// Role: maps a sequence of items and their times to one vector per position.
// Blocks: queries are computed from the layer-normalised input, keys and values from the input itself. Embeddings of
// the event's position (abs_pos tables) and of the time between event and query (time_matrix tables) are added to keys
// and values. There is no output projection. The feed-forward has a residual connection. Padded positions are set to
// zero after each block.
// Threads: one.
// Shapes: B samples, T = maxlen positions, D = hidden_units, H heads, E = D / H, R = time_span + 1 relations, I items.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/layers/linear.h"
#include "runner/models/sasrec/hyper_connection.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sequence_layers.h"
#include "runner/models/sasrec/sequence_model.h"

namespace lockstep {

// The published TiSASRec file has 3,417 rows in the time table of the keys and 257 in that of the values, because
// relations stop at time_span. If only one of the two tables has more than time_span + 1 rows, takes its first ones:
// the others cannot be reached. Returns what was cut, "time_matrix_K_emb.weight: the first 257 of 3417 rows"; else
// empty.
std::string cut_time_table(NamedTensors& file, int64_t time_span);

class TisasrecModel final : public SequenceModel {
 public:
  TisasrecModel(const SasrecOptions& options, int64_t num_items, at::Device device);

  // The sum of the Frobenius norms (not squared) of the item, position and time tables.
  [[nodiscard]] at::Tensor embedding_penalty() const override;

 private:
  struct Block {
    LayerNorm attention_norm;
    Linear query;  // each D → D
    Linear key;
    Linear value;
    std::optional<HyperConnection> attention_connection;
    LayerNorm forward_norm;
    FeedForward forward;
    std::optional<HyperConnection> forward_connection;
  };
  // The tables after dropout, which all blocks of one forward pass share.
  struct Tables {
    at::Tensor abs_K;  // [T, D] or [B, T, D]
    at::Tensor abs_V;
    at::Tensor time_K;  // [R, D], or [B, T, T, D] with a dropout for each pair; undefined without times
    at::Tensor time_V;
    at::Tensor relations_BTT;
  };

  [[nodiscard]] at::Tensor encode_embedded(const at::Tensor& items_BT, const at::Tensor& items_BTD,
                                           const at::Tensor& times_BT, Dropouts& dropouts) const override;
  // Xavier-uniform matrices and tables, layer norms 1 and 0, other biases uniform in ±1/√D.
  [[nodiscard]] at::Tensor initial_value(const std::string& name, at::IntArrayRef sizes,
                                         const InitialValues& values) const override;
  [[nodiscard]] Tables drop_out_tables(const at::Tensor& times_BT, int64_t samples, Dropouts& dropouts) const;
  [[nodiscard]] at::Tensor attend(const Block& block, const at::Tensor& query_BTD, const at::Tensor& memory_BTD,
                                  const Tables& tables, Dropouts& dropouts) const;

  at::Tensor abs_pos_K_emb_;      // [T, D]
  at::Tensor abs_pos_V_emb_;      // [T, D]
  at::Tensor time_matrix_K_emb_;  // [R, D]; undefined without times
  at::Tensor time_matrix_V_emb_;
  std::vector<Block> blocks_;
};

}  // namespace lockstep
