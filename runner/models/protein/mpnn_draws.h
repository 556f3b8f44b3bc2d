// Random numbers of ProteinMPNN: noise on the coordinates, the order of decoding, the choice of amino acids.
//
// Role: each number depends only on (seed, step, slot of the sample in the global batch, place in the sample), not on
// the rank, the world size, the padding or the other samples. The numbers are drawn on the host. Threads: pure.
// Shapes: B samples, L residues (padded), C = 3 coordinates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "runner/kernels/dropout.h"

namespace lockstep {

// The samples that numbers are drawn for; step and first_slot as in DropoutKey.
struct SampleKey {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_slot = 0;
};

// Standard normals for all coordinates: [B, L, 4, C] fp32. The caller multiplies them with the noise level in Å.
at::Tensor backbone_normals(const SampleKey& key, int64_t samples, int64_t length);
// Standard normals for decoding_order: [B, L] fp32.
at::Tensor order_normals(const SampleKey& key, int64_t samples, int64_t length);
// Uniform numbers in [0, 1) that choose the amino acid at each place: [B, L] fp64.
at::Tensor design_uniforms(const SampleKey& key, int64_t samples, int64_t length);

// The order in which residues are decoded: places that are not designed come before those that are, both kinds in
// ascending order of |normals|. designed_BL: 1 where the amino acid is to be predicted and the residue has coordinates,
// else 0.
// Returns order_BL (int64): order[b][n] is the place of the residue that is decoded as the nth.
at::Tensor decoding_order(const at::Tensor& normals_BL, const at::Tensor& designed_BL);

// The random numbers of a forward pass. The default is an evaluation that decodes the places in order.
struct MpnnDraws {
  at::Tensor noise_BL4C;              // in Å, added to the coordinates; undefined: none
  at::Tensor order_BL;                // int64, as from decoding_order; undefined: the order of the places
  std::optional<DropoutKey> dropout;  // unset: dropout is off
};

}  // namespace lockstep
