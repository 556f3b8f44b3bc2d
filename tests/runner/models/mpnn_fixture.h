// Backbones for the tests of ProteinMPNN: helices in boxes, made from a number.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <vector>

#include "runner/models/protein/mpnn_features.h"

namespace lockstep {

// One chain of `length` residues along a helix that bends, its place and its amino acids from `seed`.
inline MpnnInput made_protein(int64_t length, int64_t seed) {
  const at::Tensor places = at::arange(length, at::kFloat);
  const auto atom = [&](double turn, double radius, double rise) {
    const at::Tensor angle = places * 1.745 + turn + static_cast<double>(seed);
    const at::Tensor bend = places * 0.05 * static_cast<double>(seed % 3 + 1);
    return at::stack(
        {angle.cos() * radius + bend.sin() * 14.0, angle.sin() * radius + bend.cos() * 9.0, places * 0.9 + rise}, -1);
  };
  MpnnInput input;
  input.X_BL4C = at::stack({atom(0.0, 1.55, 0.0), atom(0.45, 2.3, 0.9), atom(0.9, 1.7, 1.9), atom(0.95, 2.0, 3.1)}, 1)
                     .unsqueeze(0);
  input.S_BL = ((at::arange(length, at::kLong) * 7 + seed).square() % 20).unsqueeze(0);
  input.mask_BL = at::ones({1, length});
  input.chain_M_BL = at::ones({1, length});
  input.residue_idx_BL = at::arange(length, at::kLong).unsqueeze(0);
  input.chain_encoding_BL = at::ones({1, length}, at::kLong);
  return input;
}

// Several proteins in one batch, padded to `length`, or to the longest.
inline MpnnInput batch_of(const std::vector<MpnnInput>& proteins, int64_t length = 0) {
  for (const MpnnInput& protein : proteins) length = std::max(length, protein.S_BL.size(1));
  const auto joined = [&](at::Tensor MpnnInput::*member, double padding) {
    std::vector<at::Tensor> rows;
    for (const MpnnInput& protein : proteins) {
      const at::Tensor& tensor = protein.*member;
      std::vector<int64_t> sizes = tensor.sizes().vec();
      sizes[1] = length;
      at::Tensor row = at::full(sizes, padding, tensor.options());
      row.narrow(1, 0, tensor.size(1)).copy_(tensor);
      rows.push_back(row);
    }
    return at::cat(rows);
  };
  return {.X_BL4C = joined(&MpnnInput::X_BL4C, std::nan("")),
          .S_BL = joined(&MpnnInput::S_BL, 0),
          .mask_BL = joined(&MpnnInput::mask_BL, 0),
          .chain_M_BL = joined(&MpnnInput::chain_M_BL, 0),
          .residue_idx_BL = joined(&MpnnInput::residue_idx_BL, -100),
          .chain_encoding_BL = joined(&MpnnInput::chain_encoding_BL, 0)};
}

}  // namespace lockstep
