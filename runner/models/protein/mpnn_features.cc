#include "runner/models/protein/mpnn_features.h"

#include <torch/types.h>

#include <vector>

#include "runner/kernels/nearest_residues.h"
#include "runner/kernels/radial_basis.h"

namespace lockstep {
namespace {

constexpr int64_t kAlphaCarbon = 1;

// Adds a Cβ to the four atoms of each residue, where an ideal residue has it; glycine gets one, too.
at::Tensor with_beta_carbon(const at::Tensor& X_BL4C) {
  const auto atoms_BLC = X_BL4C.unbind(2);
  const at::Tensor to_alpha_BLC = atoms_BLC[1] - atoms_BLC[0];
  const at::Tensor from_alpha_BLC = atoms_BLC[2] - atoms_BLC[1];
  const at::Tensor normal_BLC = at::linalg_cross(to_alpha_BLC, from_alpha_BLC);
  const at::Tensor beta_BLC =
      -0.58273431 * normal_BLC + 0.56802827 * to_alpha_BLC - 0.54067466 * from_alpha_BLC + atoms_BLC[1];
  return at::stack({atoms_BLC[0], atoms_BLC[1], atoms_BLC[2], atoms_BLC[3], beta_BLC}, 2);
}

// values_BL of each neighbour: [B, L, K].
at::Tensor of_neighbours(const at::Tensor& values_BL, const at::Tensor& neighbours_BLK) {
  return values_BL.gather(1, neighbours_BLK.flatten(1)).view_as(neighbours_BLK);
}

// The E = B · L · K pairs of a batch in one list. from_E and to_E are rows of atoms_NA3, with N = B · L residues.
struct Pairs {
  at::Tensor atoms_NA3;
  at::Tensor from_E;
  at::Tensor to_E;
  at::Tensor alpha_E;
};

Pairs pairs_of(const MpnnGraph& graph) {
  const int64_t b = graph.neighbours_BLK.size(0);
  const int64_t l = graph.neighbours_BLK.size(1);
  const int64_t k = graph.neighbours_BLK.size(2);
  const auto options = graph.neighbours_BLK.options();
  const at::Tensor first_row_B11 = at::arange(b, options).mul_(l).view({b, 1, 1});
  return {.atoms_NA3 = graph.atoms_BL5C.flatten(0, 1),
          .from_E = at::arange(b * l, options).unsqueeze(1).expand({b * l, k}).flatten(),
          .to_E = (graph.neighbours_BLK + first_row_B11).flatten(),
          .alpha_E = graph.distances_BLK.flatten()};
}

}  // namespace

MpnnGraph mpnn_graph(const MpnnInput& input, const at::Tensor& noise_BL4C, int64_t num_neighbours) {
  const at::NoGradGuard no_grad;
  at::Tensor X_BL4C = at::where(input.X_BL4C.isfinite(), input.X_BL4C, at::zeros({}, input.X_BL4C.options()));
  if (noise_BL4C.defined()) X_BL4C = X_BL4C + noise_BL4C;
  const at::Tensor atoms_BL5C = with_beta_carbon(X_BL4C).contiguous();
  const NearestResidues nearest = nearest_residues(atoms_BL5C.select(2, kAlphaCarbon), input.mask_BL.gt(0),
                                                   input.chain_encoding_BL.gt(0), num_neighbours);
  const at::Tensor& neighbours_BLK = nearest.places_BLK;
  const at::Tensor offset_BLK = input.residue_idx_BL.unsqueeze(2) - of_neighbours(input.residue_idx_BL, neighbours_BLK);
  const at::Tensor same_chain_BLK =
      input.chain_encoding_BL.unsqueeze(2).eq(of_neighbours(input.chain_encoding_BL, neighbours_BLK));
  return {.atoms_BL5C = atoms_BL5C,
          .neighbours_BLK = neighbours_BLK,
          .distances_BLK = nearest.distances_BLK,
          .present_BLK = nearest.present_BLK,
          .offsets_BLK = (offset_BLK + kMaxOffset)
                             .clamp(0, 2 * kMaxOffset)
                             .masked_fill(same_chain_BLK.logical_not(), kNumOffsets - 1)};
}

at::Tensor radial_bases(const MpnnGraph& graph) {
  const Pairs pairs = pairs_of(graph);
  std::vector<int64_t> sizes = graph.neighbours_BLK.sizes().vec();
  sizes.push_back(kRadialFeatures);
  return radial_basis(pairs.atoms_NA3, pairs.from_E, pairs.to_E, pairs.alpha_E).view(sizes);
}

at::Tensor edge_features(const MpnnGraph& graph, const at::Tensor& offset_table_OD, const at::Tensor& basis_weight_DF) {
  const Pairs pairs = pairs_of(graph);
  std::vector<int64_t> sizes = graph.neighbours_BLK.sizes().vec();
  sizes.push_back(basis_weight_DF.size(0));
  return radial_projection(pairs.atoms_NA3, pairs.from_E, pairs.to_E, pairs.alpha_E, basis_weight_DF).view(sizes) +
         at::embedding(offset_table_OD, graph.offsets_BLK);
}

}  // namespace lockstep
