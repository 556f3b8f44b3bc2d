// MpnnModel: ProteinMPNN (Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
// Science 378, 2022). It has the parameter names of the public PyTorch implementation, loads its trained weights, and
// computes the same values.
//
// Role: predicts the probability of each amino acid at each place from a protein's backbone and a part of its sequence.
// Network: a graph connects each residue to its K nearest ones. The encoder passes messages along the edges and updates
// nodes and edges. The decoder is autoregressive in a given order of the residues: it sees the amino acids of the
// residues that come before.
// Cost: the first layer of a message is split into W1 = [node | edge | neighbour], so that the products with nodes are
// computed once per node instead of once per edge; its last layer is applied to the sum over the neighbours.
// Threads: one.
// Shapes: B samples, L residues (padded), K neighbours, D = hidden_dim, A = 21 amino acids.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "runner/layers/dropouts.h"
#include "runner/layers/layer_norm.h"
#include "runner/layers/linear.h"
#include "runner/models/protein/mpnn_draws.h"
#include "runner/models/protein/mpnn_features.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct MpnnShape {
  int64_t hidden_dim = 128;
  int64_t num_encoder_layers = 3;
  int64_t num_decoder_layers = 3;
  int64_t num_neighbours = 48;
  double dropout_rate = 0.1;
};

// The network of a message along an edge: W3 · gelu(W2 · gelu(W1 · […])).
struct MpnnMessage {
  Linear first;  // columns, D each: of the node, the edge, then one or two parts for the neighbour
  Linear second;
  Linear third;
};

struct MpnnEncoderLayer {
  LayerNorm norm1;
  LayerNorm norm2;
  LayerNorm norm3;
  MpnnMessage to_nodes;  // W1, W2, W3
  MpnnMessage to_edges;  // W11, W12, W13
  Linear dense_in;
  Linear dense_out;
};

struct MpnnDecoderLayer {
  LayerNorm norm1;
  LayerNorm norm2;
  MpnnMessage to_nodes;  // the neighbour's parts: its amino acid, then its node
  Linear dense_in;
  Linear dense_out;
};

// Encoded backbones, the input of the decoder.
struct MpnnEncoding {
  MpnnGraph graph;
  at::Tensor mask_BL;
  at::Tensor nodes_BLD;
  at::Tensor edges_BLKD;
};

// Repeats each row of [B, …], which belongs to a backbone, for its n sequences: [B · n, …], a backbone's sequences one
// after the other.
at::Tensor per_sequence(const at::Tensor& of_backbones, int64_t n);

class MpnnModel {
 public:
  // Parameters are fp32 on `device`, not yet initialised.
  MpnnModel(const MpnnShape& shape, at::Device device);

  // Matrices and tables are Xavier-uniform, layer norms 1 and 0, other biases uniform in ±1/√inputs.
  void initialize(uint64_t seed);
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const MpnnShape& shape() const { return shape_; }

  // The logarithms of the amino acids' probabilities: [B, L, A], fp32, differentiable with respect to the parameters.
  // Each place sees the backbone and the amino acids that come before it in draws.order_BL. Meaningless where mask_BL
  // is 0.
  [[nodiscard]] at::Tensor log_probs(const MpnnInput& input, const MpnnDraws& draws) const;

  // The two halves of log_probs, without dropout. Each encoded backbone may be decoded with n sequences or orders at
  // once: S_BL and order_BL are then [B · n, L], in the order of per_sequence.
  [[nodiscard]] MpnnEncoding encode(const MpnnInput& input, const at::Tensor& noise_BL4C = {}) const;
  [[nodiscard]] at::Tensor decode(const MpnnEncoding& encoding, const at::Tensor& S_BL,
                                  const at::Tensor& order_BL) const;

  // The encoder's initial edges, edges_BLKD.
  [[nodiscard]] at::Tensor edges(const MpnnInput& input) const;

  // For decoding place by place (mpnn_sampling.h).
  [[nodiscard]] const std::vector<MpnnDecoderLayer>& decoder_layers() const { return decoder_layers_; }
  [[nodiscard]] const at::Tensor& amino_acid_table() const { return W_s_; }  // [A, D]
  [[nodiscard]] const Linear& output() const { return W_out_; }

 private:
  void name_parameters();
  [[nodiscard]] at::Tensor edges(const MpnnGraph& graph) const;
  [[nodiscard]] MpnnEncoding encode(const MpnnInput& input, const at::Tensor& noise_BL4C, Dropouts& dropouts) const;
  [[nodiscard]] at::Tensor decode(const MpnnEncoding& encoding, const at::Tensor& S_BL, const at::Tensor& order_BL,
                                  Dropouts& dropouts) const;

  MpnnShape shape_;
  Linear offsets_;         // embeds the classes of the pairs' offsets along the chain
  at::Tensor edge_embed_;  // [D, 16 + 400]: columns of the offsets, then of the radial bases
  LayerNorm norm_edges_;
  Linear W_e_;
  at::Tensor W_s_;  // [A, D]
  std::vector<MpnnEncoderLayer> encoder_layers_;
  std::vector<MpnnDecoderLayer> decoder_layers_;
  Linear W_out_;
  NamedTensors parameters_;
};

// The published scale of the sum over the neighbours.
inline constexpr double kMpnnMessageScale = 30.0;

// The columns of a message's first layer that multiply part 0 (the node), 1 (the edge), 2, … : [D, D], a view.
at::Tensor message_columns(const MpnnMessage& message, int64_t part);

inline constexpr double kMpnnSmoothing = 0.1;  // the published label smoothing

// Sums over all places, weighted by weights_BL (mask · chain_M): fp32 scalars, differentiable except for `correct`.
struct MpnnSums {
  at::Tensor smoothed_loss;  // Σ w · cross-entropy against the normalised distribution (one-hot + smoothing / 21)
  at::Tensor loss;           // Σ w · negative logarithm of the true amino acid's probability
  at::Tensor correct;        // Σ w where the most probable amino acid is the true one
  at::Tensor weight;         // Σ w
};
MpnnSums mpnn_sums(const at::Tensor& log_probs_BLA, const at::Tensor& S_BL, const at::Tensor& weights_BL,
                   double smoothing = kMpnnSmoothing);

}  // namespace lockstep
