// One structure as `lockstep protein score` and `design` take it: its tensors, and what of it is designed.
//
// Role: a StructureView and the flags → a Target; several Targets → one padded batch; amino acids → text.
// Threads: pure. Ownership: a Target borrows from the cache of its view. Shapes: B structures, L residues (padded).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/structures/structure_cache.h"
#include "runner/models/protein/mpnn_features.h"
#include "runner/models/protein/mpnn_helper_files.h"
#include "runner/models/protein/mpnn_task_flags.h"

namespace lockstep {

struct Target {
  int64_t number = 0;  // among the structures of the task, from 0
  StructureView view;
  MpnnInput input;  // B = 1, on the host; its chain_M_BL says which residues are to be designed
  std::vector<size_t> designed_chains;
  std::vector<size_t> fixed_chains;
  std::vector<int64_t> place_of;  // position in view → place in the tensors; -1: not in them
  std::vector<std::vector<int64_t>> tied;
  HelperChoices chosen;  // of the helper files

  [[nodiscard]] int64_t length() const { return input.S_BL.size(1); }
};

// The proteins of the structure, in the order of the file, and what the flags and the helper files say of it. Errors
// (kInvalid): what they name and the structure lacks; no residue is left to design.
Result<Target> make_target(const StructureView& view, const MpnnTaskOptions& options, const HelperFiles& files);

// 1 where an amino acid is predicted: fp32 [B, L].
at::Tensor designed_places(const MpnnInput& input);

// Several targets, padded at their ends to the longest: on the host.
MpnnInput padded_batch(const std::vector<Target>& targets);

// The names of chains, sorted.
std::vector<std::string> chain_names(const StructureView& view, const std::vector<size_t>& chains);

// The designed chains in the order of their names.
std::vector<size_t> designed_chains_by_name(const Target& target);

// The designed chains' amino acids in that order, with slashes between the chains. S_L: int64, padded or not.
std::string sequence_text(const Target& target, const at::Tensor& S_L);

}  // namespace lockstep
