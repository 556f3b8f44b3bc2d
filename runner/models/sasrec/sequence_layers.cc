#include "runner/models/sasrec/sequence_layers.h"

#include <torch/types.h>

namespace lockstep {

LayerNorm make_norm(int64_t hidden_units, at::Device device) { return trained_layer_norm(hidden_units, device, 1e-8); }

FeedForward make_feed_forward(int64_t hidden_units, at::Device device) {
  const int64_t d = hidden_units;
  return {.conv1 = {.weight = trained({d, d, 1}, device), .bias = trained({d}, device)},
          .conv2 = {.weight = trained({d, d, 1}, device), .bias = trained({d}, device)}};
}

at::Tensor feed_forward(const FeedForward& layer, const at::Tensor& x_BTD, Dropouts& dropouts) {
  const at::Tensor inner_BTD = dropouts.of_relu(at::linear(x_BTD, layer.conv1.weight.squeeze(-1), layer.conv1.bias));
  return dropouts(at::linear(inner_BTD, layer.conv2.weight.squeeze(-1), layer.conv2.bias));
}

void add_parameters(NamedTensors& all, const std::string& name, const FeedForward& layer) {
  add_linear(all, name + ".conv1", layer.conv1);
  add_linear(all, name + ".conv2", layer.conv2);
}

at::Tensor pair_logits(const at::Tensor& item_emb, const at::Tensor& ids_3BT,
                       const std::function<at::Tensor(const at::Tensor& items_BTD)>& encode) {
  // A split needs one copy in the backward pass; two selections would need more.
  const auto roles = at::embedding(item_emb, ids_3BT, kPadding).split_with_sizes({1, 2}, 0);
  const at::Tensor h_BTD = encode(roles[0].squeeze(0));
  return at::mul(roles[1], h_BTD.unsqueeze(0)).sum(-1, /*keepdim=*/false, at::kFloat);
}

}  // namespace lockstep
