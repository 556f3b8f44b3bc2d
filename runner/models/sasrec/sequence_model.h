// SequenceModel: the interface of SASRec and TiSASRec that evaluation, loss and recommendations use.
//
// Threads: one.
// Shapes: B samples, T = maxlen positions, D = hidden_units, I items (0 is padding).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "runner/kernels/dropout.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

class SequenceModel {
 public:
  virtual ~SequenceModel() = default;

  // Draws the initial values on the host from Philox, keyed by (seed, parameter, element).
  virtual void initialize(uint64_t seed) = 0;
  // In the order of the PyTorch implementation's state_dict.
  [[nodiscard]] virtual const NamedTensors& parameters() const = 0;
  [[nodiscard]] virtual const at::Tensor& item_embedding() const = 0;  // [I + 1, D]

  // items_BT: left-padded with 0. times_BT: the times of the same events, 0 at padding (SasrecData::times_of);
  // undefined for a model that uses no times. Both int64, on the model's device. Dropout is off. Returns h_BTD: its dot
  // product with an item's embedding is that item's score.
  [[nodiscard]] virtual at::Tensor encode(const at::Tensor& items_BT, const at::Tensor& times_BT) const = 0;

  // ids_3BT: input, positives, negatives (int64). Returns the logits of positives and negatives: logits_2BT (fp32),
  // differentiable with respect to every parameter.
  [[nodiscard]] virtual at::Tensor train_logits(const at::Tensor& ids_3BT, const at::Tensor& times_BT,
                                                const DropoutKey& key) const = 0;

  // The penalty that --l2_emb weights in the loss: a differentiable scalar.
  [[nodiscard]] virtual at::Tensor embedding_penalty() const = 0;
};

// Makes the model of options.variant; its parameters are on `device` and not yet initialised.
std::unique_ptr<SequenceModel> make_sequence_model(const SasrecOptions& options, int64_t num_items, at::Device device);

}  // namespace lockstep
