// SequenceModel: what SASRec and TiSASRec have in common, and the interface that evaluation, loss and recommendations
// use. Each has the parameter names of the PyTorch implementation that published results come from, and computes the
// same values.
//
// Threads: one.
// Shapes: B samples, T = maxlen positions, D = hidden_units, I items (0 is padding).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runner/kernels/dropout.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sequence_layers.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

class SequenceModel {
 public:
  virtual ~SequenceModel() = default;

  // Draws the initial values on the host from Philox, keyed by (seed, parameter, element). Padding's rows are 0.
  virtual void initialize(uint64_t seed);
  // In the order of the PyTorch implementation's state_dict.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const at::Tensor& item_embedding() const { return item_emb_; }  // [I + 1, D]

  // items_BT: left-padded with 0. times_BT: the times of the same events, 0 at padding (SasrecData::times_of);
  // undefined for a model that uses no times. Both int64, on the model's device. Dropout is off. Returns h_BTD: its dot
  // product with an item's embedding is that item's score.
  [[nodiscard]] at::Tensor encode(const at::Tensor& items_BT, const at::Tensor& times_BT) const;

  // ids_3BT: input, positives, negatives (int64). Returns the logits of positives and negatives: logits_2BT (fp32),
  // differentiable with respect to every parameter.
  [[nodiscard]] at::Tensor train_logits(const at::Tensor& ids_3BT, const at::Tensor& times_BT,
                                        const DropoutKey& key) const;

  // The penalty that --l2_emb weights in the loss: a differentiable scalar.
  [[nodiscard]] virtual at::Tensor embedding_penalty() const = 0;

 protected:
  // hidden_units must be a multiple of num_heads. Parameters are fp32 on `device`, not yet initialised.
  SequenceModel(const SasrecOptions& options, int64_t num_items, at::Device device);

  // items_BTD: the embeddings of the items. Returns h_BTD, as encode.
  [[nodiscard]] virtual at::Tensor encode_embedded(const at::Tensor& items_BT, const at::Tensor& items_BTD,
                                                   const at::Tensor& times_BT, Dropouts& dropouts) const = 0;
  // `name`: the parameter's.
  [[nodiscard]] virtual at::Tensor initial_value(const std::string& name, at::IntArrayRef sizes,
                                                 const InitialValues& values) const = 0;

  void add(const std::string& name, const at::Tensor& tensor) { parameters_.push_back({name, tensor}); }
  // Names the blocks' parameters: each kind of layer has its own list, with one entry per block.
  template <typename Block>
  static void add_list(const std::string& list, const std::vector<Block>& blocks, const auto& add_entry) {
    for (size_t i = 0; i < blocks.size(); ++i) add_entry(list + "." + std::to_string(i), blocks[i]);
  }
  // add_attention(name, block) names those of the block's attention.
  template <typename Block>
  void add_blocks(const std::vector<Block>& blocks, const auto& add_attention) {
    add_list("attention_layernorms", blocks, [this](const std::string& name, const Block& block) {
      add_layer_norm(parameters_, name, block.attention_norm);
    });
    add_list("attention_layers", blocks, add_attention);
    add_list("forward_layernorms", blocks, [this](const std::string& name, const Block& block) {
      add_layer_norm(parameters_, name, block.forward_norm);
    });
    add_list("forward_layers", blocks,
             [this](const std::string& name, const Block& block) { add_parameters(parameters_, name, block.forward); });
  }

  SasrecOptions options_;
  at::Tensor item_emb_;  // [I + 1, D]
  LayerNorm last_norm_;
  at::Tensor causal_mask_TT_;  // 0 where position i may attend to j (j <= i), -inf above the diagonal
  NamedTensors parameters_;
};

// Makes the model of options.variant; its parameters are on `device` and not yet initialised.
std::unique_ptr<SequenceModel> make_sequence_model(const SasrecOptions& options, int64_t num_items, at::Device device);

}  // namespace lockstep
