// The layers that SASRec and TiSASRec have in common.
//
// Threads: one. Shapes: B samples, T = maxlen positions, D = hidden_units.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

#include "runner/layers/dropouts.h"
#include "runner/layers/initial_values.h"
#include "runner/layers/layer_norm.h"
#include "runner/layers/linear.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

inline constexpr int64_t kPadding = 0;  // the item number of padded positions

// Layer norm with the implementations' eps, 1e-8.
LayerNorm make_norm(int64_t hidden_units, at::Device device);

// Two convolutions of width 1, which are linear layers, with a ReLU between them.
struct FeedForward {
  Linear conv1;  // weight: [D, D, 1]
  Linear conv2;
};
FeedForward make_feed_forward(int64_t hidden_units, at::Device device);
at::Tensor feed_forward(const FeedForward& layer, const at::Tensor& x_BTD, Dropouts& dropouts);

// Appends the parameters with names as in the PyTorch implementations, for example "forward_layers.0.conv1.weight".
void add_parameters(NamedTensors& all, const std::string& name, const FeedForward& layer);

// The forward pass of training, with one gather from the item table for input, positives and negatives (ids_3BT,
// int64). `encode` maps the embedded input to h_BTD. Returns the logits of positives and negatives: logits_2BT (fp32),
// differentiable.
at::Tensor pair_logits(const at::Tensor& item_emb, const at::Tensor& ids_3BT,
                       const std::function<at::Tensor(const at::Tensor& items_BTD)>& encode);

}  // namespace lockstep
