// MdmModel: the masked side-chain model of the protein guide.
//
// Role: a backbone and its side chains' fragments, some of them masked → the kind of each masked fragment, and the bin
// of the first torsion angle of each side chain.
// The form: an encoder that passes messages along the graph of each residue's 30 nearest ones, from a residue to those
// that are near it; a decoder of Transformer layers (norms behind, GELU) over the fragments of all residues, one after
// the other, which sees all of them in both directions and the encoded residues.
// Each message's first layer is split by what it multiplies, so that residues are multiplied once and not once for each
// edge, and its last one multiplies the sum over the edges. Attention weights are not dropped out, what comes out of
// the attention is: so the masks do not depend on the padding, and the weights need not be held.
// Threads: one. Shapes: B samples, L residues (padded), K = 30 neighbours, E = B · L · K edges of F = 35 values,
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

// One batch, each sample padded at its end. All on one device. Every sample has a residue and a fragment.
struct MdmInput {
  at::Tensor X_BL4C;         // fp32: N, CA, C and O in Å; 0 where it is padding
  at::Tensor is_residue_BL;  // bool: false where it is padding
  at::Tensor fragments_BM;   // int64: Fragment; kFragmentPad is padding
  at::Tensor masked_N;       // int64: rows of [B · M], the tokens whose kind is asked for
  at::Tensor torsions_T;     // int64: rows of [B · M], the first tokens of the side chains whose angle is asked for
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
  MdmPerceptron message;  // of a residue and an edge
  MdmPerceptron update;   // of a residue and its messages
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

// Sines, then cosines of φ, ψ and ω: [B, L, 6]. At the ends of a chain, where an atom of the next or the last residue
// is missing, the angle is 0. No gradient.
at::Tensor backbone_dihedrals(const at::Tensor& X_BL4C, const at::Tensor& is_residue_BL);

// Who is near whom: an edge from each residue to each of its nearest.
struct MdmGraph {
  at::Tensor to_E;         // int64: rows of [B · L]
  at::Tensor weights_BLK;  // fp32: 0 where a residue has fewer neighbours, and where it is padding
  at::Tensor edges_BLKF;   // Gaussians of the distance, and the direction
};

// No gradient.
MdmGraph mdm_graph(const MdmInput& input);

class MdmModel {
 public:
  // Parameters are fp32 on `device`, not yet initialised.
  MdmModel(const MdmShape& shape, at::Device device);

  // Xavier-uniform matrices, a normal table, layer norms 1 and 0, other biases 0.
  void initialize(uint64_t seed);
  // "encoder.…", then "decoder.…": the names of the PyTorch modules that the parts would be.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] const MdmShape& shape() const { return shape_; }

  // dropout: of a training step; none: an evaluation.
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
