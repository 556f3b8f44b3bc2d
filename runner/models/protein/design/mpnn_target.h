// Target: one structure in `lockstep protein score` and `design`: its tensors, and which residues are designed.
//
// Role: makes a Target from a StructureView and the flags, a padded batch from several Targets, and text from amino
// acids.
// Threads: pure.
// Ownership: a Target borrows from the cache of its view.
// Shapes: B structures, L residues (padded).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/design/mpnn_helper_files.h"
#include "runner/models/protein/design/mpnn_task_flags.h"
#include "runner/models/protein/mpnn_features.h"

namespace lockstep {

struct Target {
  int64_t number = 0;  // index among the structures of the task, from 0
  StructureView view;
  MpnnInput input;  // B = 1, on the host; chain_M_BL is 1 for the residues that are to be designed
  std::vector<size_t> designed_chains;
  std::vector<size_t> fixed_chains;
  std::vector<int64_t> place_of;  // index in view → index in the tensors; -1: not in the tensors
  std::vector<std::vector<int64_t>> tied;
  HelperChoices chosen;  // what the helper files choose for this structure

  [[nodiscard]] int64_t length() const { return input.S_BL.size(1); }
};

// Makes the target from the structure's proteins, in the order of the file, with the choices of the flags and the
// helper files. Errors (kInvalid): a chain or residue that they name is not in the structure; no residue is left to
// design.
Result<Target> make_target(const StructureView& view, const MpnnTaskOptions& options, const HelperFiles& files);

// 1 where an amino acid is designed, which also needs coordinates: fp32 [B, L].
at::Tensor designed_places(const MpnnInput& input);

// The input of several targets, each padded at its end to the longest, on the host.
MpnnInput padded_batch(const std::vector<Target>& targets);

// The names of chains, sorted.
std::vector<std::string> chain_names(const StructureView& view, const std::vector<size_t>& chains);

// The designed chains in the order of their names.
std::vector<size_t> designed_chains_by_name(const Target& target);

// The designed chains' amino acids in that order, with slashes between the chains. S_L: int64, may be padded.
std::string sequence_text(const Target& target, const at::Tensor& S_L);

}  // namespace lockstep
