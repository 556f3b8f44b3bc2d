#include "runner/models/protein/mpnn_model.h"

#include <torch/types.h>

#include <cmath>
#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/kernels/message_gelu.h"
#include "runner/kernels/radial_basis.h"
#include "runner/layers/initial_values.h"

namespace lockstep {
namespace {

constexpr int64_t kOffsetFeatures = 16;

MpnnMessage make_message(int64_t parts, int64_t d, at::Device device) {
  return {.first = trained_linear(parts * d, d, device),
          .second = trained_linear(d, d, device),
          .third = trained_linear(d, d, device)};
}

// The node's part of the first layer of its messages, including the bias.
at::Tensor of_node(const MpnnMessage& message, const at::Tensor& nodes_BLD) {
  return at::linear(nodes_BLD, message_columns(message, 0), message.first.bias);
}

// The first two layers of all sequences' messages, without the second layer's bias and GELU. edges_BLKD: the backbones'
// edges. own_BLD: the result of of_node. table_ND: the neighbours' part of the first layer; rows_BLK: the row of
// table_ND that each edge uses.
at::Tensor along_edges(const MpnnMessage& message, const at::Tensor& edges_BLKD, const at::Tensor& own_BLD,
                       const at::Tensor& table_ND, const at::Tensor& rows_BLK) {
  const int64_t n = rows_BLK.size(0) / edges_BLKD.size(0);
  // Made contiguous because gelu_of_sum overwrites it: expanded sequences of a backbone would share memory.
  const at::Tensor first_BLKD = per_sequence(at::linear(edges_BLKD, message_columns(message, 1)), n).contiguous();
  const at::Tensor inner_BLKD =
      gelu_of_sum(first_BLKD.flatten(0, 1), own_BLD.flatten(0, 1), table_ND, rows_BLK.flatten(0, 1))
          .view_as(first_BLKD);
  return at::linear(inner_BLKD, message.second.weight);
}

// Sums each node's messages over its neighbours. weights_BLK: 1 or 0. inner_BLKD: the result of along_edges.
at::Tensor sum_messages(const MpnnMessage& message, const at::Tensor& inner_BLKD, const at::Tensor& weights_BLK) {
  const at::Tensor sum_BLD = weighted_gelu_sum(inner_BLKD.flatten(0, 1), message.second.bias, weights_BLK.flatten(0, 1))
                                 .view({inner_BLKD.size(0), inner_BLKD.size(1), inner_BLKD.size(3)});
  const at::Tensor count_BL1 = weights_BLK.sum(-1, /*keepdim=*/true);
  return (at::linear(sum_BLD, message.third.weight) + count_BL1 * message.third.bias) / kMpnnMessageScale;
}

// The end of each layer: adds the messages to the nodes, and then applies the nodes' feed-forward layers.
template <typename Layer>
at::Tensor update_nodes(const Layer& layer, const at::Tensor& nodes_BLD, const at::Tensor& message_BLD,
                        const at::Tensor& mask_BL, Dropouts& dropouts) {
  const at::Tensor normed_BLD = layer.norm1(nodes_BLD + dropouts(message_BLD));
  const at::Tensor dense_BLD = layer.dense_out(at::gelu(layer.dense_in(normed_BLD)));
  return layer.norm2(normed_BLD + dropouts(dense_BLD)) * mask_BL.unsqueeze(2);
}

// Converts places in each sample to rows of a table [B · rows, D].
at::Tensor rows_of(const at::Tensor& places_BLK, int64_t rows) {
  const int64_t b = places_BLK.size(0);
  return places_BLK + at::arange(b, places_BLK.options()).mul_(rows).view({b, 1, 1});
}

// The step in which each place is decoded: the inverse of the order.
at::Tensor ranks_of(const at::Tensor& order_BL) {
  return at::empty_like(order_BL).scatter_(1, order_BL,
                                           at::arange(order_BL.size(1), order_BL.options()).expand_as(order_BL));
}

}  // namespace

at::Tensor message_columns(const MpnnMessage& message, int64_t part) {
  const int64_t d = message.first.weight.size(0);
  return message.first.weight.narrow(1, part * d, d);
}

at::Tensor per_sequence(const at::Tensor& of_backbones, int64_t n) {
  if (n == 1) return of_backbones;
  std::vector<int64_t> sizes(static_cast<size_t>(of_backbones.dim()) + 1, -1);
  sizes[1] = n;
  return of_backbones.unsqueeze(1).expand(sizes).flatten(0, 1);
}

MpnnModel::MpnnModel(const MpnnShape& shape, at::Device device) : shape_(shape) {
  const int64_t d = shape.hidden_dim;
  offsets_ = trained_linear(kNumOffsets, kOffsetFeatures, device);
  edge_embed_ = trained({d, kOffsetFeatures + kRadialFeatures}, device);
  norm_edges_ = trained_layer_norm(d, device);
  W_e_ = trained_linear(d, d, device);
  W_s_ = trained({kNumAminoAcids, d}, device);
  for (int64_t i = 0; i < shape.num_encoder_layers; ++i) {
    encoder_layers_.push_back({.norm1 = trained_layer_norm(d, device),
                               .norm2 = trained_layer_norm(d, device),
                               .norm3 = trained_layer_norm(d, device),
                               .to_nodes = make_message(3, d, device),
                               .to_edges = make_message(3, d, device),
                               .dense_in = trained_linear(d, 4 * d, device),
                               .dense_out = trained_linear(4 * d, d, device)});
  }
  for (int64_t i = 0; i < shape.num_decoder_layers; ++i) {
    decoder_layers_.push_back({.norm1 = trained_layer_norm(d, device),
                               .norm2 = trained_layer_norm(d, device),
                               .to_nodes = make_message(4, d, device),
                               .dense_in = trained_linear(d, 4 * d, device),
                               .dense_out = trained_linear(4 * d, d, device)});
  }
  W_out_ = trained_linear(d, kNumAminoAcids, device);
  name_parameters();
}

void MpnnModel::name_parameters() {
  // Each layer's bias must follow its weight: initialize() relies on it.
  NamedTensors& p = parameters_;
  const auto add_message = [&](const std::string& name, const MpnnMessage& message, const std::string& prefix) {
    add_linear(p, name + prefix + "1", message.first);
    add_linear(p, name + prefix + "2", message.second);
    add_linear(p, name + prefix + "3", message.third);
  };
  const auto add_dense = [&](const std::string& name, const auto& layer) {
    add_linear(p, name + "dense.W_in", layer.dense_in);
    add_linear(p, name + "dense.W_out", layer.dense_out);
  };
  add_linear(p, "features.embeddings.linear", offsets_);
  p.push_back({"features.edge_embedding.weight", edge_embed_});
  add_layer_norm(p, "features.norm_edges", norm_edges_);
  add_linear(p, "W_e", W_e_);
  p.push_back({"W_s.weight", W_s_});
  for (size_t i = 0; i < encoder_layers_.size(); ++i) {
    const std::string name = "encoder_layers." + std::to_string(i) + ".";
    const MpnnEncoderLayer& layer = encoder_layers_[i];
    add_layer_norm(p, name + "norm1", layer.norm1);
    add_layer_norm(p, name + "norm2", layer.norm2);
    add_layer_norm(p, name + "norm3", layer.norm3);
    add_message(name, layer.to_nodes, "W");
    add_message(name, layer.to_edges, "W1");
    add_dense(name, layer);
  }
  for (size_t i = 0; i < decoder_layers_.size(); ++i) {
    const std::string name = "decoder_layers." + std::to_string(i) + ".";
    const MpnnDecoderLayer& layer = decoder_layers_[i];
    add_layer_norm(p, name + "norm1", layer.norm1);
    add_layer_norm(p, name + "norm2", layer.norm2);
    add_message(name, layer.to_nodes, "W");
    add_dense(name, layer);
  }
  add_linear(p, "W_out", W_out_);
}

void MpnnModel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    const InitialValues values(seed, i);
    if (tensor.dim() >= 2) {
      tensor.copy_(values.xavier_uniform(tensor.sizes()));
    } else if (name.find("norm") != std::string::npos) {
      tensor.fill_(name.ends_with(".weight") ? 1.0 : 0.0);
    } else {
      const auto inputs = static_cast<double>(parameters_[i - 1].tensor.size(1));
      tensor.copy_(values.uniform(tensor.sizes(), 1.0 / std::sqrt(inputs)));
    }
  }
}

at::Tensor MpnnModel::log_probs(const MpnnInput& input, const MpnnDraws& draws) const {
  Dropouts dropouts = draws.dropout ? Dropouts(shape_.dropout_rate, *draws.dropout) : Dropouts();
  return decode(encode(input, draws.noise_BL4C, dropouts), input.S_BL, draws.order_BL, dropouts);
}

MpnnEncoding MpnnModel::encode(const MpnnInput& input, const at::Tensor& noise_BL4C) const {
  Dropouts off;
  return encode(input, noise_BL4C, off);
}

at::Tensor MpnnModel::decode(const MpnnEncoding& encoding, const at::Tensor& S_BL, const at::Tensor& order_BL) const {
  Dropouts off;
  return decode(encoding, S_BL, order_BL, off);
}

at::Tensor MpnnModel::edges(const MpnnInput& input) const {
  return edges(mpnn_graph(input, at::Tensor(), shape_.num_neighbours));
}

at::Tensor MpnnModel::edges(const MpnnGraph& graph) const {
  // One row for each class of offset, which combines the two linear layers that the class passes through.
  const auto columns = edge_embed_.split_with_sizes({kOffsetFeatures, kRadialFeatures}, 1);
  const at::Tensor offset_table_OD = at::linear(offsets_.weight.t() + offsets_.bias, columns[0]);
  return W_e_(norm_edges_(edge_features(graph, offset_table_OD, columns[1])));
}

MpnnEncoding MpnnModel::encode(const MpnnInput& input, const at::Tensor& noise_BL4C, Dropouts& dropouts) const {
  MpnnGraph graph = mpnn_graph(input, noise_BL4C, shape_.num_neighbours);
  at::Tensor edges_BLKD = edges(graph);
  const int64_t b = input.mask_BL.size(0);
  const int64_t l = input.mask_BL.size(1);
  const at::Tensor rows_BLK = rows_of(graph.neighbours_BLK, l);
  const at::Tensor& mask_BL = input.mask_BL;
  const at::Tensor weights_BLK = mask_BL.flatten().index_select(0, rows_BLK.flatten()).view_as(rows_BLK) *
                                 mask_BL.unsqueeze(2) * graph.present_BLK;
  const auto inner_of = [&](const MpnnMessage& message, const at::Tensor& nodes_BLD) {
    return along_edges(message, edges_BLKD, of_node(message, nodes_BLD),
                       at::linear(nodes_BLD, message_columns(message, 2)).flatten(0, 1), rows_BLK);
  };
  at::Tensor nodes_BLD = at::zeros({b, l, shape_.hidden_dim}, mask_BL.options());
  for (const MpnnEncoderLayer& layer : encoder_layers_) {
    const at::Tensor message_BLD = sum_messages(layer.to_nodes, inner_of(layer.to_nodes, nodes_BLD), weights_BLK);
    nodes_BLD = update_nodes(layer, nodes_BLD, message_BLD, mask_BL, dropouts);
    const at::Tensor inner_BLKD = inner_of(layer.to_edges, nodes_BLD);
    const at::Tensor hidden_BLKD =
        gelu_with_bias(inner_BLKD.flatten(0, 1), layer.to_edges.second.bias).view_as(inner_BLKD);
    const at::Tensor message_BLKD = layer.to_edges.third(hidden_BLKD);
    edges_BLKD = layer.norm3(edges_BLKD + dropouts(message_BLKD));
  }
  return {.graph = std::move(graph), .mask_BL = mask_BL, .nodes_BLD = nodes_BLD, .edges_BLKD = edges_BLKD};
}

at::Tensor MpnnModel::decode(const MpnnEncoding& encoding, const at::Tensor& S_BL, const at::Tensor& order_BL,
                             Dropouts& dropouts) const {
  const int64_t b = S_BL.size(0);
  const int64_t l = S_BL.size(1);
  const int64_t k = encoding.graph.neighbours_BLK.size(2);
  const int64_t backbones = encoding.mask_BL.size(0);
  LOCKSTEP_CHECK(b % backbones == 0, "each backbone has equally many sequences");
  const int64_t n = b / backbones;
  const at::Tensor neighbours_BLK = per_sequence(encoding.graph.neighbours_BLK, n);
  const at::Tensor ranks_BL = order_BL.defined() ? ranks_of(order_BL) : at::arange(l, S_BL.options()).expand({b, l});
  const at::Tensor neighbour_ranks_BLK = ranks_BL.gather(1, neighbours_BLK.flatten(1)).view({b, l, k});
  const at::Tensor is_before_BLK = neighbour_ranks_BLK.lt(ranks_BL.unsqueeze(2));
  // A neighbour that is decoded earlier contributes its amino acid and its node in the decoder; any other only its node
  // from the encoder. A sample's table holds the former rows for all residues, and then the latter.
  const at::Tensor rows_BLK = rows_of(at::where(is_before_BLK, neighbours_BLK, neighbours_BLK + l), 2 * l);
  const at::Tensor weights_BLK = per_sequence(encoding.graph.present_BLK.to(at::kFloat), n);
  const at::Tensor encoded_BLD = per_sequence(encoding.nodes_BLD, n);
  const at::Tensor mask_BL = per_sequence(encoding.mask_BL, n);

  at::Tensor nodes_BLD = encoded_BLD;
  for (const MpnnDecoderLayer& layer : decoder_layers_) {
    const MpnnMessage& message = layer.to_nodes;
    const at::Tensor amino_acids_BLD = at::embedding(at::linear(W_s_, message_columns(message, 2)), S_BL);
    const at::Tensor node_weight_DD = message_columns(message, 3);
    const at::Tensor table_ND =
        at::cat({amino_acids_BLD + at::linear(nodes_BLD, node_weight_DD), at::linear(encoded_BLD, node_weight_DD)}, 1)
            .flatten(0, 1);
    const at::Tensor inner_BLKD =
        along_edges(message, encoding.edges_BLKD, of_node(message, nodes_BLD), table_ND, rows_BLK);
    nodes_BLD = update_nodes(layer, nodes_BLD, sum_messages(message, inner_BLKD, weights_BLK), mask_BL, dropouts);
  }
  return at::log_softmax(W_out_(nodes_BLD), -1, at::kFloat);
}

MpnnSums mpnn_sums(const at::Tensor& log_probs_BLA, const at::Tensor& S_BL, const at::Tensor& weights_BL,
                   double smoothing) {
  const at::Tensor loss_BL = log_probs_BLA.gather(2, S_BL.unsqueeze(2)).squeeze(2).neg();
  // The target (one-hot + s/A) / (1 + s) gives each amino acid s / (A (1 + s)), and the true one 1 / (1 + s) more.
  const at::Tensor even_BL = log_probs_BLA.mean(-1).neg();
  const at::Tensor smoothed_BL = (loss_BL + smoothing * even_BL) / (1.0 + smoothing);
  return {.smoothed_loss = (smoothed_BL * weights_BL).sum(),
          .loss = (loss_BL * weights_BL).sum(),
          .correct = (log_probs_BLA.argmax(-1).eq(S_BL) * weights_BL).sum().detach(),
          .weight = weights_BL.sum()};
}

}  // namespace lockstep
