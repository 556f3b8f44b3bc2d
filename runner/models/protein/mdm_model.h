// MdmModel: the masked side-chain model of the protein guide.
//
// Role: predicts, from a backbone and its side chains' fragments of which some are masked, the kind of each masked
// fragment and the bin of the first torsion angle of each side chain.
// Network: the encoder passes messages from each residue to its 30 nearest ones. The decoder consists of Transformer
// layers (post-norm, GELU) over the sequence of all residues' fragments: self-attention in both directions, and
// cross-attention to the encoded residues.
// Cost: the first layer of a message is split into a product with the residue, computed once per residue, and one with
// the edge; its last layer is applied to the sum over the edges. Dropout acts on the output of an attention, not on its
// weights, so that the dropout masks do not depend on the padding and the weights need not be stored.
// Threads: one.
// Shapes: B samples, L residues (padded), K = 30 neighbours, E = B · L · K edges of F = 35 values,
// M fragment tokens (padded), S tokens or residues that are attended to, D = hidden_dim, H heads, C = 3 coordinates,
// N masked tokens and T torsion angles of the whole batch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/layers/dropouts.h"
#include "runner/layers/layer_norm.h"
#include "runner/layers/linear.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

struct MdmShape {
  int64_t hidden_dim = 256;  // even, and divisible by num_heads
  int64_t num_encoder_layers = 3;
  int64_t num_decoder_layers = 3;
  int64_t num_heads = 8;
  double dropout_rate = 0.1;
};

// One batch. Each sample is padded at its end and has at least one residue and one fragment. All tensors are on one
// device.
struct MdmInput {
  at::Tensor X_BL4C;         // fp32: N, CA, C and O in Å; 0 at padding
  at::Tensor is_residue_BL;  // bool: false at padding
  at::Tensor fragments_BM;   // int64: Fragment; kFragmentPad at padding
  at::Tensor masked_N;       // int64: rows of [B · M], the tokens whose kind is predicted
  at::Tensor torsions_T;     // int64: rows of [B · M], the first tokens of the side chains whose angle is predicted
};

struct MdmLogits {
  at::Tensor fragments_NV;  // fp32, V = kFragments
  at::Tensor bins_TV;       // fp32, V = kChi1Bins
};

// Linear, layer norm, ReLU, dropout, linear.
struct MdmPerceptron {
  Linear first;
  LayerNorm norm;
  Linear second;
};

struct MdmEncoderLayer {
  MdmPerceptron message;  // input: a residue and an edge
  MdmPerceptron update;   // input: a residue and the sum of its messages
  LayerNorm norm;
};

struct MdmAttention {
  Linear in;  // [3D, D]: queries, keys, values
  Linear out;
};

struct MdmDecoderLayer {
  MdmAttention self_attention;
  MdmAttention cross_attention;
  Linear linear1;
  Linear linear2;
  LayerNorm norm1;
  LayerNorm norm2;
  LayerNorm norm3;
};

// Layer norm, linear, GELU, dropout, linear.
struct MdmHead {
  LayerNorm norm;
  Linear first;
  Linear second;
};

inline constexpr int64_t kMdmNeighbours = 30;

// The sines of φ, ψ and ω, then their cosines: [B, L, 6]. An angle that needs an atom of the residue before the first
// or after the last is 0. No gradient.
at::Tensor backbone_dihedrals(const at::Tensor& X_BL4C, const at::Tensor& is_residue_BL);

// The neighbour graph, with an edge from each residue to each of its nearest.
struct MdmGraph {
  at::Tensor to_E;         // int64: the edge's end, a row of [B · L]
  at::Tensor weights_BLK;  // fp32: 1, or 0 for an entry without an edge (fewer neighbours than K, padding)
  at::Tensor edges_BLKF;   // fp32: Gaussian functions of the distance, then the unit vector of the direction
};

// No gradient.
MdmGraph mdm_graph(const MdmInput& input);

class MdmModel {
 public:
  // Parameters are fp32 on `device`, not yet initialised.
  MdmModel(const MdmShape& shape, at::Device device);

  // Matrices are Xavier-uniform, the fragment table normal, layer norms 1 and 0, other biases 0.
  void initialize(uint64_t seed);
  // First "encoder.…", then "decoder.…", named as in the equivalent PyTorch modules.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const MdmShape& shape() const { return shape_; }

  // `dropout`: the key of a training step; without one, dropout is off, as in an evaluation.
  [[nodiscard]] MdmLogits logits(const MdmInput& input, const std::optional<DropoutKey>& dropout) const;

 private:
  void add(const std::string& name, const MdmPerceptron& perceptron);
  void add(const std::string& name, const MdmAttention& attention);
  void add(const std::string& name, const MdmHead& head);
  void name_parameters();
  [[nodiscard]] at::Tensor encode(const MdmInput& input, Dropouts& dropouts) const;  // nodes_BLD
  [[nodiscard]] at::Tensor decode(const MdmInput& input, const at::Tensor& nodes_BLD,
                                  Dropouts& dropouts) const;  // tokens_BMD

  MdmShape shape_;
  Linear dihedral_embed_;
  Linear node_embed_;
  std::vector<MdmEncoderLayer> encoder_layers_;
  at::Tensor fragment_embed_;  // [kFragments, D]
  Linear encoder_proj_;
  std::vector<MdmDecoderLayer> decoder_layers_;
  MdmHead fragment_head_;
  MdmHead torsion_head_;
  NamedTensors parameters_;
};

}  // namespace lockstep
