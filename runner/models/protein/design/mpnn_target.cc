#include "runner/models/protein/design/mpnn_target.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "runner/models/protein/design/mpnn_positions.h"
#include "runner/models/protein/mpnn_input.h"

namespace lockstep {
namespace {

// Marks the residues to design, by --design_chains, --fixed_positions and the helper files.
Status choose_designed(const MpnnTaskOptions& options, Target& target) {
  const StructureView& view = target.view;
  const auto chains = chains_of(view, options.design_chains);
  if (!chains.ok()) return chains.error().with_context("--design_chains");
  target.designed_chains = target.chosen.designed_chains.value_or(*chains);
  auto* const chain_M = target.input.chain_M_BL.mutable_data_ptr<float>();
  for (size_t c = 0; c < view.chains.size(); ++c) {
    const bool is_designed =
        std::find(target.designed_chains.begin(), target.designed_chains.end(), c) != target.designed_chains.end();
    if (!is_designed && view.chains[c].is_protein) target.fixed_chains.push_back(c);
    for (uint32_t i = view.chains[c].begin; is_designed && i < view.chains[c].end; ++i) {
      chain_M[target.place_of[i]] = 1.0F;
    }
  }
  const auto fixed = positions_of(view, options.fixed_positions);
  if (!fixed.ok()) return fixed.error().with_context("--fixed_positions");
  for (const std::vector<int64_t>& some : {*fixed, target.chosen.fixed}) {
    for (const int64_t position : some) chain_M[target.place_of[static_cast<size_t>(position)]] = 0.0F;
  }
  return {};
}

// Takes the groups of --tied_positions_jsonl. The public helper script ties the whole length of its chains, so
// positions without coordinates are left out, and a group with a fixed position keeps its amino acids, as in the public
// package.
void tie_groups_of_file(Target& target) {
  const auto* const has_coordinates = target.input.mask_BL.const_data_ptr<float>();
  auto* const chain_M = target.input.chain_M_BL.mutable_data_ptr<float>();
  for (const std::vector<int64_t>& group : target.chosen.tied) {
    std::vector<int64_t> places;
    bool is_fixed = false;
    for (const int64_t position : group) {
      const int64_t place = target.place_of[static_cast<size_t>(position)];
      if (has_coordinates[place] == 0.0F) continue;
      places.push_back(place);
      is_fixed = is_fixed || chain_M[place] == 0.0F;
    }
    if (is_fixed) {
      for (const int64_t place : places) chain_M[place] = 0.0F;
    } else if (!places.empty()) {
      target.tied.push_back(std::move(places));
    }
  }
}

// Takes the tied residues from --tied_positions, all of which must be designed, or from the helper file.
Status choose_tied(const MpnnTaskOptions& options, Target& target) {
  const StructureView& view = target.view;
  auto tied = tied_positions_of(view, options.tied_positions);
  if (!tied.ok()) return tied.error().with_context("--tied_positions");
  if (!tied->empty() && !target.chosen.tied.empty()) {
    return Error{ErrorCode::kInvalid, "--tied_positions and --tied_positions_jsonl are both given: give one of them"};
  }
  if (tied->empty()) tie_groups_of_file(target);
  const at::Tensor designed_BL = designed_places(target.input);
  const auto* const is_designed = designed_BL.const_data_ptr<float>();
  for (const std::vector<int64_t>& group : *tied) {
    std::vector<int64_t> places;
    for (const int64_t position : group) {
      const auto at = static_cast<size_t>(position);
      const int64_t place = target.place_of[at];
      if (is_designed[place] == 0.0F) {
        return Error{ErrorCode::kInvalid,
                     "--tied_positions: residue " + std::to_string(view.numbers[at]) + " of chain " +
                         std::string(view.chains[view.chain_of[at]].id) + " of " + std::string(view.name) +
                         " is not designed: its chain or position is fixed, or its coordinates are not all there"};
      }
      places.push_back(place);
    }
    target.tied.push_back(std::move(places));
  }
  return {};
}

}  // namespace

Result<Target> make_target(const StructureView& view, const MpnnTaskOptions& options, const HelperFiles& files) {
  Target target;
  target.view = view;
  target.place_of.assign(view.size(), -1);
  const std::vector<size_t> places = protein_places(view);
  for (size_t i = 0; i < places.size(); ++i) target.place_of[places[i]] = static_cast<int64_t>(i);
  target.input = padding_of(1, static_cast<int64_t>(places.size()), /*pinned=*/false);
  put_structure(view, places, 0, target.input);
  TRY_ASSIGN(target.chosen, files.choices(view));
  TRY(choose_designed(options, target));
  TRY(choose_tied(options, target));
  if (designed_places(target.input).sum().item<double>() > 0.0) return target;
  return Error{ErrorCode::kInvalid,
               std::string(view.name) +
                   ": no residue is left: those of the chosen chains are fixed (--fixed_positions, "
                   "--fixed_positions_jsonl), tied to a fixed one (--tied_positions_jsonl) or lack one of N, CA, C "
                   "and O"};
}

at::Tensor designed_places(const MpnnInput& input) { return input.chain_M_BL * input.mask_BL; }

MpnnInput padded_batch(const std::vector<Target>& targets) {
  int64_t length = 0;
  for (const Target& target : targets) length = std::max(length, target.length());
  MpnnInput batch = padding_of(static_cast<int64_t>(targets.size()), length, /*pinned=*/false);
  for (size_t b = 0; b < targets.size(); ++b) {
    const auto row = static_cast<int64_t>(b);
    put_structure(targets[b].view, protein_places(targets[b].view), row, batch);
    batch.chain_M_BL[row].narrow(0, 0, targets[b].length()).copy_(targets[b].input.chain_M_BL[0]);
  }
  return batch;
}

std::vector<std::string> chain_names(const StructureView& view, const std::vector<size_t>& chains) {
  std::vector<std::string> names;
  for (const size_t chain : chains) names.emplace_back(view.chains[chain].id);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<size_t> designed_chains_by_name(const Target& target) {
  std::vector<size_t> chains = target.designed_chains;
  std::sort(chains.begin(), chains.end(),
            [&](size_t a, size_t b) { return target.view.chains[a].id < target.view.chains[b].id; });
  return chains;
}

std::string sequence_text(const Target& target, const at::Tensor& S_L) {
  const at::Tensor S = S_L.to(at::kCPU).contiguous();
  const auto* const amino_acids = S.const_data_ptr<int64_t>();
  const std::vector<size_t> chains = designed_chains_by_name(target);
  std::string text;
  for (const size_t c : chains) {
    if (c != chains.front()) text += '/';
    const ChainView& chain = target.view.chains[c];
    for (uint32_t i = chain.begin; i < chain.end; ++i) {
      text += kResidueAlphabet[static_cast<size_t>(amino_acids[target.place_of[i]])];
    }
  }
  return text;
}

}  // namespace lockstep
