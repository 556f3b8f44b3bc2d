// Sequences for backbones: amino acids drawn place by place from ProteinMPNN, and how well a sequence fits.
//
// Each step computes one place of each sequence, from the K neighbours of that place alone. Deterministic: the same
// order and uniforms give the same sequences, whatever else is in the batch.
// Threads: as ATen operators.
// Shapes: B backbones, N sequences (equally many of each backbone, as per_sequence has them), L residues (padded),
// A = 21 amino acids.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runner/models/protein/mpnn_model.h"

namespace lockstep {

struct DesignOptions {
  double temperature = 0.1;
  at::Tensor designed_BL;  // fp32: 1 where an amino acid is to be drawn; the others keep theirs
  at::Tensor bias_BLA;     // fp32, added to the logits before the temperature; undefined: none
  at::Tensor omitted_BLA;  // bool: what may not be drawn; undefined: nothing. Something must be left.
  // Of one backbone alone (B = 1):
  std::vector<std::vector<int64_t>> tied;  // places that get one amino acid, from the mean of their logits
  at::Tensor tied_weights_L;               // fp32: factors of the logits in that mean; undefined: 1
};

// The order with each group's places behind one another, in the group's order, at the place of its first.
at::Tensor order_with_ties(const at::Tensor& order_NL, const std::vector<std::vector<int64_t>>& tied);

// Draws N sequences for encoded backbones. S_BL: int64, the amino acids of what is not designed. order_NL: int64; with
// tied places as from order_with_ties, and one order for all sequences. uniforms_NL: fp64 in [0, 1): sequence n draws
// at place i the first amino acid at which the cumulative probability exceeds uniforms[n][i]; tied places use the bias,
// the omissions and the number of the last place of the group. Returns S_NL (int64).
at::Tensor design(const MpnnModel& model, const MpnnEncoding& encoding, const at::Tensor& S_BL,
                  const DesignOptions& options, const at::Tensor& order_NL, const at::Tensor& uniforms_NL);

// Σ w · negative log-probability / Σ w of each sequence: [N], fp64; NaN without weight. The score has the designed
// places' weights, the global score those of all residues with coordinates.
at::Tensor mean_negative_log_prob(const at::Tensor& log_probs_NLA, const at::Tensor& S_NL,
                                  const at::Tensor& weights_NL);

}  // namespace lockstep
