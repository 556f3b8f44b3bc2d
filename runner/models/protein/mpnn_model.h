// MpnnModel: ProteinMPNN (Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
// Science 378, 2022), with the parameter names and the numbers of the public PyTorch implementation, whose trained
// weights it loads.
//
// Role: the backbone of a protein and a part of its sequence → the probability of each amino acid at each place.
// The form: a graph of each residue's K nearest ones; an encoder that passes messages along the edges and renews nodes
// and edges; a decoder that is masked by an order of the residues: it knows the amino acids of those before. Each
// message's first layer is split by what it multiplies (W1 = [of the node | of the edge | of the neighbour]), so that
// nodes are multiplied once and not once for each edge, and its last one multiplies the sum over the neighbours.
// Threads: one. Shapes: B samples, L residues (padded), K neighbours, D = hidden_dim, A = 21 amino acids.
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

// W3 · gelu(W2 · gelu(W1 · […])): along each edge.
struct MpnnMessage {
  Linear first;  // columns: the node, the edge, then what is known of the neighbour; D each
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
  MpnnMessage to_nodes;  // the neighbour: its amino acid, then its node
  Linear dense_in;
  Linear dense_out;
};

// Backbones, encoded: all that the decoder needs of them.
struct MpnnEncoding {
  MpnnGraph graph;
  at::Tensor mask_BL;
  at::Tensor nodes_BLD;
  at::Tensor edges_BLKD;
};

// What is known of B backbones [B, …] for n sequences of each: [B · n, …], those of a backbone one after the other.
at::Tensor per_sequence(const at::Tensor& of_backbones, int64_t n);

class MpnnModel {
 public:
  // Parameters are fp32 on `device`, not yet initialised.
  MpnnModel(const MpnnShape& shape, at::Device device);

  // Xavier-uniform matrices and tables, layer norms 1 and 0, other biases uniform in ±1/√inputs.
  void initialize(uint64_t seed);
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const MpnnShape& shape() const { return shape_; }

  // Logarithms of the probabilities of the amino acids: [B, L, A], fp32, with a graph to the parameters. Each place
  // sees the backbone and the amino acids that come before it in draws.order_BL. Where mask_BL is 0 they say nothing.
  [[nodiscard]] at::Tensor log_probs(const MpnnInput& input, const MpnnDraws& draws) const;

  // The two halves of that, without dropout. Each encoded backbone may be decoded with n sequences or orders at once:
  // S_BL, order_BL [B · n, L], as per_sequence has them.
  [[nodiscard]] MpnnEncoding encode(const MpnnInput& input, const at::Tensor& noise_BL4C = {}) const;
  [[nodiscard]] at::Tensor decode(const MpnnEncoding& encoding, const at::Tensor& S_BL,
                                  const at::Tensor& order_BL) const;

  // The edges that the encoder begins with: edges_BLKD.
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
  Linear offsets_;         // of the pairs' places in the chain
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

inline constexpr double kMpnnSmoothing = 0.1;  // of the labels, as published

// Sums over the places with weight, fp32 scalars with a graph. weights_BL: mask · chain_M.
struct MpnnSums {
  at::Tensor
      smoothed_loss;   // Σ w · cross-entropy against (one-hot + smoothing / 21), which is made a distribution again
  at::Tensor loss;     // Σ w · negative logarithm of the true amino acid's probability
  at::Tensor correct;  // Σ w where the most probable amino acid is the true one; no graph
  at::Tensor weight;   // Σ w
};
MpnnSums mpnn_sums(const at::Tensor& log_probs_BLA, const at::Tensor& S_BL, const at::Tensor& weights_BL,
                   double smoothing = kMpnnSmoothing);

}  // namespace lockstep
