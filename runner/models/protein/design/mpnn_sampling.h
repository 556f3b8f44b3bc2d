// Samples sequences for backbones, drawing one amino acid after the other from ProteinMPNN, and scores how well a
// sequence fits its backbone.
//
// Each step computes one place of each sequence, from its K neighbours only. Deterministic: the same order and uniform
// numbers give the same sequences, regardless of what else is in the batch.
// Threads: as ATen operators.
// Shapes: B backbones, N sequences (equally many per backbone, in the order of per_sequence), L residues (padded),
// A = 21 amino acids.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runner/models/protein/mpnn_model.h"

namespace lockstep {

struct DesignOptions {
  double temperature = 0.1;
  at::Tensor designed_BL;  // fp32: 1 where an amino acid is to be drawn; other places keep theirs
  at::Tensor bias_BLA;     // fp32, added to the logits before the temperature; undefined: none
  at::Tensor omitted_BLA;  // bool: true for amino acids that may not be drawn, never for all of them; undefined: none
  // Tied places need B = 1. Each group of places gets the same amino acid, drawn from the mean of their logits.
  std::vector<std::vector<int64_t>> tied;
  at::Tensor tied_weights_L;  // fp32: the factor of each place's logits in that mean; undefined: 1
};

// The order in which each group's places follow one another, in the group's order, from where its first one was.
at::Tensor order_with_ties(const at::Tensor& order_NL, const std::vector<std::vector<int64_t>>& tied);

// Draws N sequences for encoded backbones. S_BL: int64, the amino acids at places that are not designed. order_NL:
// int64; with tied places it comes from order_with_ties and is the same for all sequences. uniforms_NL: fp64 in [0, 1):
// at place i, sequence n draws the first amino acid at which the cumulative probability exceeds uniforms[n][i]. Tied
// places use the bias, the omissions and the uniform number of the group's last place. Returns S_NL (int64).
at::Tensor design(const MpnnModel& model, const MpnnEncoding& encoding, const at::Tensor& S_BL,
                  const DesignOptions& options, const at::Tensor& order_NL, const at::Tensor& uniforms_NL);

// Σ w · negative log-probability / Σ w of each sequence: [N], fp64; NaN if all weights are 0. With weights for the
// designed places this is the score, with weights for all residues with coordinates the global score.
at::Tensor mean_negative_log_prob(const at::Tensor& log_probs_NLA, const at::Tensor& S_NL,
                                  const at::Tensor& weights_NL);

}  // namespace lockstep
