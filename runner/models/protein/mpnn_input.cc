#include "runner/models/protein/mpnn_input.h"

#include <torch/types.h>

#include <algorithm>

namespace lockstep {

std::vector<size_t> protein_places(const StructureView& view) {
  std::vector<size_t> places;
  for (const ChainView& chain : view.chains) {
    for (size_t i = chain.begin; chain.is_protein && i < chain.end; ++i) places.push_back(i);
  }
  return places;
}

MpnnInput padding_of(int64_t samples, int64_t length, bool pinned) {
  const auto floats = at::TensorOptions(at::kFloat).pinned_memory(pinned);
  const auto integers = at::TensorOptions(at::kLong).pinned_memory(pinned);
  return {.X_BL4C = at::full({samples, length, 4, 3}, kMissing, floats),
          .S_BL = at::full({samples, length}, int64_t{kUnknownResidue}, integers),
          .mask_BL = at::zeros({samples, length}, floats),
          .chain_M_BL = at::zeros({samples, length}, floats),
          .residue_idx_BL = at::full({samples, length}, int64_t{-kChainGap}, integers),
          .chain_encoding_BL = at::zeros({samples, length}, integers)};
}

void put_structure(const StructureView& view, const std::vector<size_t>& places, int64_t b, const MpnnInput& input) {
  const int64_t length = input.S_BL.size(1);
  auto* const coordinates = input.X_BL4C.data_ptr<float>() + b * length * 12;
  auto* const mask = input.mask_BL.data_ptr<float>() + b * length;
  auto* const S = input.S_BL.data_ptr<int64_t>() + b * length;
  auto* const residue_idx = input.residue_idx_BL.data_ptr<int64_t>() + b * length;
  auto* const chain_encoding = input.chain_encoding_BL.data_ptr<int64_t>() + b * length;
  int64_t chains = 0;  // chains that have begun so far
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t place = places[i];
    if (i == 0 || view.chain_of[place] != view.chain_of[places[i - 1]]) ++chains;
    const Backbone& backbone = view.backbone[place];
    for (size_t a = 0; a < 4; ++a) std::copy_n(backbone[a].data(), 3, coordinates + i * 12 + a * 3);
    mask[i] = is_complete(backbone) ? 1.0F : 0.0F;
    S[i] = view.types[place];
    residue_idx[i] = static_cast<int64_t>(i) + kChainGap * (chains - 1);
    chain_encoding[i] = chains;
  }
}

}  // namespace lockstep
