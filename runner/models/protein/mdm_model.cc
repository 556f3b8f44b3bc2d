#include "runner/models/protein/mdm_model.h"

#include <torch/types.h>

#include <cmath>

#include "runner/kernels/nearest_residues.h"
#include "runner/layers/initial_values.h"
#include "runner/models/protein/data/fragments.h"

namespace lockstep {
namespace {

constexpr int64_t kDihedralFeatures = 6;
constexpr int64_t kDihedralWidth = 64;
constexpr int64_t kDistanceBases = 32;
constexpr double kLargestDistance = 20.0;  // Å: centre of the last Gaussian
constexpr int64_t kEdgeFeatures = kDistanceBases + 3;
constexpr int64_t kFeedForwardFactor = 4;
constexpr double kTableDeviation = 0.02;
constexpr double kLongestWave = 10000.0;  // bound of the position encoding's wavelengths, divided by 2π

MdmPerceptron mdm_perceptron(int64_t in, int64_t d, at::Device device) {
  return {.first = trained_linear(in, d, device),
          .norm = trained_layer_norm(d, device),
          .second = trained_linear(d, d, device)};
}

MdmAttention mdm_attention(int64_t d, at::Device device) {
  return {.in = trained_linear(d, 3 * d, device), .out = trained_linear(d, d, device)};
}

MdmHead mdm_head(int64_t d, int64_t out, at::Device device) {
  return {.norm = trained_layer_norm(d, device),
          .first = trained_linear(d, d, device),
          .second = trained_linear(d, out, device)};
}

// The dihedral angle of the four atoms a, b, c and d in radians: [B, L]. 0 where it is not defined.
at::Tensor dihedral_angles(const at::Tensor& a_BLC, const at::Tensor& b_BLC, const at::Tensor& c_BLC,
                           const at::Tensor& d_BLC) {
  const at::Tensor axis_BLC = c_BLC - b_BLC;
  const at::Tensor before_BLC = at::linalg_cross(b_BLC - a_BLC, axis_BLC);
  const at::Tensor after_BLC = at::linalg_cross(axis_BLC, d_BLC - c_BLC);
  const at::Tensor sine_BL = (at::linalg_cross(before_BLC, after_BLC) * axis_BLC).sum(-1);
  const at::Tensor cosine_BL = (before_BLC * after_BLC).sum(-1) * axis_BLC.norm(2, -1);
  return at::atan2(sine_BL, cosine_BL);
}

// Row i of the result is row i + 1 of x; the last row is repeated.
at::Tensor of_next(const at::Tensor& x_BLC) {
  return at::cat({x_BLC.slice(1, 1), x_BLC.slice(1, x_BLC.size(1) - 1)}, 1);
}

// Applies the linear layer to [x | y], where one row of x belongs to K rows of y: x is multiplied before it is
// repeated.
at::Tensor apply_split(const Linear& linear, const at::Tensor& x_BLD, const at::Tensor& y_BLKF) {
  const int64_t d = x_BLD.size(-1);
  const auto columns = linear.weight.split_with_sizes({d, y_BLKF.size(-1)}, 1);
  return at::linear(x_BLD, columns[0], linear.bias).unsqueeze(2) + at::linear(y_BLKF, columns[1]);
}

// The middle of a perceptron, between its first and its last linear layer.
at::Tensor inner(const MdmPerceptron& perceptron, const at::Tensor& first, Dropouts& dropouts) {
  return dropouts.of_relu(perceptron.norm(first));
}

at::Tensor encoder_layer(const MdmEncoderLayer& layer, const MdmGraph& graph, const at::Tensor& nodes_BLD,
                         Dropouts& dropouts) {
  const MdmPerceptron& message = layer.message;
  const at::Tensor inner_BLKD = inner(message, apply_split(message.first, nodes_BLD, graph.edges_BLKF), dropouts);
  const auto sum_at_ends = [&](const at::Tensor& of_edges_ED) {
    return at::zeros({nodes_BLD.size(0) * nodes_BLD.size(1), of_edges_ED.size(1)}, of_edges_ED.options())
        .index_add(0, graph.to_E, of_edges_ED)
        .view({nodes_BLD.size(0), nodes_BLD.size(1), -1});
  };
  // The message's last layer is applied to the sum of the messages, so that its bias counts once per message.
  const at::Tensor weights_BLK1 = graph.weights_BLK.unsqueeze(3);
  const at::Tensor sum_BLD = sum_at_ends((inner_BLKD * weights_BLK1).flatten(0, 2));
  const at::Tensor count_BL1 = sum_at_ends(weights_BLK1.flatten(0, 2));
  const at::Tensor messages_BLD = at::linear(sum_BLD, message.second.weight) + count_BL1 * message.second.bias;

  const MdmPerceptron& update = layer.update;
  const at::Tensor update_BLD = update.second(
      inner(update, update.first(at::cat({nodes_BLD, messages_BLD.to(nodes_BLD.scalar_type())}, -1)), dropouts));
  return layer.norm(update_BLD + nodes_BLD);
}

// Multi-head attention of the tokens to the rows of from_BSD where keys_BS is true.
at::Tensor attend(const MdmAttention& attention, int64_t heads, const at::Tensor& tokens_BMD,
                  const at::Tensor& from_BSD, const at::Tensor& keys_BS) {
  const int64_t d = tokens_BMD.size(-1);
  const auto weights = attention.in.weight.split(d);
  const auto biases = attention.in.bias.split(d);
  const auto by_head = [&](const at::Tensor& x_BSD, size_t part) {
    return at::linear(x_BSD, weights[part], biases[part]).unflatten(-1, {heads, d / heads}).transpose(1, 2);
  };
  const at::Tensor attended_BHMD = at::scaled_dot_product_attention(
      by_head(tokens_BMD, 0), by_head(from_BSD, 1), by_head(from_BSD, 2), keys_BS.view({-1, 1, 1, keys_BS.size(1)}));
  return attention.out(attended_BHMD.transpose(1, 2).flatten(2));
}

// The position encoding [M, D]: sines in the even columns, cosines in the odd ones.
at::Tensor position_encoding(int64_t m, int64_t d, const at::TensorOptions& options) {
  const at::Tensor rates = (at::arange(0, d, 2, options) * (-std::log(kLongestWave) / static_cast<double>(d))).exp();
  const at::Tensor angles = at::arange(m, options).unsqueeze(1) * rates;
  return at::stack({angles.sin(), angles.cos()}, -1).flatten(1);
}

// The head's fp32 logits for the given rows of [B · M].
at::Tensor read_head(const MdmHead& head, const at::Tensor& tokens_BMD, const at::Tensor& rows_N, Dropouts& dropouts) {
  const at::Tensor hidden_BMD = dropouts(at::gelu(head.first(head.norm(tokens_BMD))));
  return head.second(hidden_BMD.flatten(0, 1).index_select(0, rows_N)).to(at::kFloat);
}

}  // namespace

MdmGraph mdm_graph(const MdmInput& input) {
  const at::NoGradGuard no_grad;
  const at::Tensor centres_BLC = input.X_BL4C.select(2, 1).contiguous();
  const int64_t b = centres_BLC.size(0);
  const int64_t l = centres_BLC.size(1);
  // One neighbour more than needed, because each residue is its own nearest.
  const NearestResidues nearest =
      nearest_residues(centres_BLC, input.is_residue_BL, input.is_residue_BL, kMdmNeighbours + 1);
  const at::Tensor& places_BLK = nearest.places_BLK;
  const at::Tensor own_L1 = at::arange(l, places_BLK.options()).unsqueeze(1);
  const at::Tensor is_edge_BLK = nearest.present_BLK & places_BLK.ne(own_L1) & input.is_residue_BL.unsqueeze(2);
  const at::Tensor to_E = (places_BLK + at::arange(b, places_BLK.options()).mul_(l).view({b, 1, 1})).flatten();

  const at::Tensor offset_BLKC =
      centres_BLC.flatten(0, 1).index_select(0, to_E).view({b, l, -1, 3}) - centres_BLC.unsqueeze(2);
  const at::Tensor distance_BLK1 = offset_BLKC.norm(2, -1, /*keepdim=*/true);
  const at::Tensor bases_R = at::linspace(0.0, kLargestDistance, kDistanceBases, centres_BLC.options());
  const at::Tensor from_base_BLKR = (distance_BLK1 - bases_R) / (kLargestDistance / kDistanceBases);
  return {
      .to_E = to_E,
      .weights_BLK = is_edge_BLK.to(at::kFloat),
      .edges_BLKF = at::cat({(from_base_BLKR.square() * -0.5).exp(), offset_BLKC / distance_BLK1.clamp_min(1e-8)}, -1)};
}

at::Tensor backbone_dihedrals(const at::Tensor& X_BL4C, const at::Tensor& is_residue_BL) {
  const at::NoGradGuard no_grad;
  const auto atoms = X_BL4C.unbind(2);
  const at::Tensor& N_BLC = atoms[0];
  const at::Tensor& CA_BLC = atoms[1];
  const at::Tensor& C_BLC = atoms[2];
  const at::Tensor previous_C_BLC = at::cat({C_BLC.slice(1, 0, 1), C_BLC.slice(1, 0, C_BLC.size(1) - 1)}, 1);
  const at::Tensor phi_BL = dihedral_angles(previous_C_BLC, N_BLC, CA_BLC, C_BLC);
  const at::Tensor psi_BL = dihedral_angles(N_BLC, CA_BLC, C_BLC, of_next(N_BLC));
  const at::Tensor omega_BL = dihedral_angles(CA_BLC, C_BLC, of_next(N_BLC), of_next(CA_BLC));
  at::Tensor has_previous_BL = is_residue_BL.clone();
  has_previous_BL.select(1, 0).fill_(false);
  at::Tensor has_next_BL = at::zeros_like(is_residue_BL);
  has_next_BL.slice(1, 0, -1).copy_(is_residue_BL.slice(1, 1));
  const at::Tensor angles_BL3 = at::stack({phi_BL * has_previous_BL, psi_BL * has_next_BL, omega_BL * has_next_BL}, -1);
  return at::cat({angles_BL3.sin(), angles_BL3.cos()}, -1);
}

MdmModel::MdmModel(const MdmShape& shape, at::Device device) : shape_(shape) {
  const int64_t d = shape.hidden_dim;
  dihedral_embed_ = trained_linear(kDihedralFeatures, kDihedralWidth, device);
  node_embed_ = trained_linear(kDihedralWidth, d, device);
  for (int64_t i = 0; i < shape.num_encoder_layers; ++i) {
    encoder_layers_.push_back({.message = mdm_perceptron(d + kEdgeFeatures, d, device),
                               .update = mdm_perceptron(2 * d, d, device),
                               .norm = trained_layer_norm(d, device)});
  }
  fragment_embed_ = trained({kFragments, d}, device);
  encoder_proj_ = trained_linear(d, d, device);
  for (int64_t i = 0; i < shape.num_decoder_layers; ++i) {
    decoder_layers_.push_back({.self_attention = mdm_attention(d, device),
                               .cross_attention = mdm_attention(d, device),
                               .linear1 = trained_linear(d, kFeedForwardFactor * d, device),
                               .linear2 = trained_linear(kFeedForwardFactor * d, d, device),
                               .norm1 = trained_layer_norm(d, device),
                               .norm2 = trained_layer_norm(d, device),
                               .norm3 = trained_layer_norm(d, device)});
  }
  fragment_head_ = mdm_head(d, kFragments, device);
  torsion_head_ = mdm_head(d, kChi1Bins, device);
  name_parameters();
}

// The numbers are the indices in torch.nn.Sequential; those of ReLU, GELU and dropout are missing, as these have no
// parameters.
void MdmModel::add(const std::string& name, const MdmPerceptron& perceptron) {
  add_linear(parameters_, name + ".0", perceptron.first);
  add_layer_norm(parameters_, name + ".1", perceptron.norm);
  add_linear(parameters_, name + ".4", perceptron.second);
}

void MdmModel::add(const std::string& name, const MdmHead& head) {
  add_layer_norm(parameters_, name + ".0", head.norm);
  add_linear(parameters_, name + ".1", head.first);
  add_linear(parameters_, name + ".4", head.second);
}

// Named as in torch.nn.MultiheadAttention.
void MdmModel::add(const std::string& name, const MdmAttention& attention) {
  parameters_.push_back({name + ".in_proj_weight", attention.in.weight});
  parameters_.push_back({name + ".in_proj_bias", attention.in.bias});
  add_linear(parameters_, name + ".out_proj", attention.out);
}

void MdmModel::name_parameters() {
  add_linear(parameters_, "encoder.dihedral_embed", dihedral_embed_);
  add_linear(parameters_, "encoder.node_embed", node_embed_);
  for (size_t i = 0; i < encoder_layers_.size(); ++i) {
    const std::string name = "encoder.layers." + std::to_string(i) + ".";
    add(name + "message", encoder_layers_[i].message);
    add(name + "update", encoder_layers_[i].update);
    add_layer_norm(parameters_, name + "norm", encoder_layers_[i].norm);
  }
  parameters_.push_back({"decoder.fragment_embed.weight", fragment_embed_});
  add_linear(parameters_, "decoder.encoder_proj", encoder_proj_);
  for (size_t i = 0; i < decoder_layers_.size(); ++i) {
    const std::string name = "decoder.transformer.layers." + std::to_string(i) + ".";
    const MdmDecoderLayer& layer = decoder_layers_[i];
    add(name + "self_attn", layer.self_attention);
    add(name + "multihead_attn", layer.cross_attention);
    add_linear(parameters_, name + "linear1", layer.linear1);
    add_linear(parameters_, name + "linear2", layer.linear2);
    add_layer_norm(parameters_, name + "norm1", layer.norm1);
    add_layer_norm(parameters_, name + "norm2", layer.norm2);
    add_layer_norm(parameters_, name + "norm3", layer.norm3);
  }
  add("decoder.fragment_head", fragment_head_);
  add("decoder.torsion_head", torsion_head_);
}

void MdmModel::initialize(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    const InitialValues values(seed, i);
    if (name == "decoder.fragment_embed.weight") {
      tensor.copy_(values.normal(tensor.sizes(), kTableDeviation));
    } else if (tensor.dim() == 2) {
      tensor.copy_(values.xavier_uniform(tensor.sizes()));
    } else {
      tensor.fill_(name.ends_with("weight") ? 1.0 : 0.0);  // only layer norms have a weight with one dimension
    }
  }
}

at::Tensor MdmModel::encode(const MdmInput& input, Dropouts& dropouts) const {
  const MdmGraph graph = mdm_graph(input);
  at::Tensor nodes_BLD = node_embed_(dihedral_embed_(backbone_dihedrals(input.X_BL4C, input.is_residue_BL)));
  for (const MdmEncoderLayer& layer : encoder_layers_) nodes_BLD = encoder_layer(layer, graph, nodes_BLD, dropouts);
  return nodes_BLD;
}

at::Tensor MdmModel::decode(const MdmInput& input, const at::Tensor& nodes_BLD, Dropouts& dropouts) const {
  const at::Tensor is_token_BM = input.fragments_BM.ne(kFragmentPad);
  const at::Tensor residues_BLD = encoder_proj_(nodes_BLD);
  at::Tensor tokens_BMD = at::embedding(fragment_embed_, input.fragments_BM);
  tokens_BMD = tokens_BMD + position_encoding(tokens_BMD.size(1), shape_.hidden_dim, input.X_BL4C.options());
  for (const MdmDecoderLayer& layer : decoder_layers_) {
    tokens_BMD = layer.norm1(
        tokens_BMD + dropouts(attend(layer.self_attention, shape_.num_heads, tokens_BMD, tokens_BMD, is_token_BM)));
    tokens_BMD = layer.norm2(tokens_BMD + dropouts(attend(layer.cross_attention, shape_.num_heads, tokens_BMD,
                                                          residues_BLD, input.is_residue_BL)));
    const at::Tensor wide_BMF = dropouts(at::gelu(layer.linear1(tokens_BMD)));
    tokens_BMD = layer.norm3(tokens_BMD + dropouts(layer.linear2(wide_BMF)));
  }
  return tokens_BMD;
}

MdmLogits MdmModel::logits(const MdmInput& input, const std::optional<DropoutKey>& dropout) const {
  Dropouts dropouts = dropout ? Dropouts(shape_.dropout_rate, *dropout) : Dropouts();
  const at::Tensor nodes_BLD = encode(input, dropouts);
  const at::Tensor tokens_BMD = decode(input, nodes_BLD, dropouts);
  return {.fragments_NV = read_head(fragment_head_, tokens_BMD, input.masked_N, dropouts),
          .bins_TV = read_head(torsion_head_, tokens_BMD, input.torsions_T, dropouts)};
}

}  // namespace lockstep
