// mdm_dump: the masked side-chain model on tensors from Python, for the comparison with the twin in
// tests/python/test_mdm.py.
//
//   mdm_dump logits|gradients|features --weights FILE --input FILE --out FILE [--repeats N]
//
// --input (safetensors): the tensors of MdmInput by their names; for gradients also kinds_N and bins_T.
// --out: logits: fragments_NV, bins_TV. gradients: sums [2], the cross-entropies of fragments and torsions, and
// grad/<parameter> of fragments / N + torsions / T. Without dropout. features: dihedrals [B, L, 6] and edges
// [B, L, K, 35], from X_BL4C and is_residue_BL alone, made N times, and seconds [N] of each.
#include <ATen/core/Reduction.h>
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/models/protein/mdm_model.h"
#include "tests/tools/dump_program.h"

namespace lockstep {
namespace {

NamedTensors work(const std::string& what, const MdmModel& model, const NamedTensors& tensors) {
  const auto in = [&](const std::string& name) { return tensor_of(tensors, name); };
  if (what == "features") {
    const MdmInput input{.X_BL4C = in("X_BL4C"),
                         .is_residue_BL = in("is_residue_BL"),
                         .fragments_BM = {},
                         .masked_N = {},
                         .torsions_T = {}};
    return {{"dihedrals", backbone_dihedrals(input.X_BL4C, input.is_residue_BL)},
            {"edges", mdm_graph(input).edges_BLKF}};
  }
  const MdmLogits logits = model.logits({.X_BL4C = in("X_BL4C"),
                                         .is_residue_BL = in("is_residue_BL"),
                                         .fragments_BM = in("fragments_BM"),
                                         .masked_N = in("masked_N"),
                                         .torsions_T = in("torsions_T")},
                                        std::nullopt);
  if (what == "logits") return {{"fragments_NV", logits.fragments_NV}, {"bins_TV", logits.bins_TV}};
  LOCKSTEP_CHECK(what == "gradients", "expected logits or gradients");
  const at::Tensor fragments = at::cross_entropy_loss(logits.fragments_NV, in("kinds_N"), {}, at::Reduction::Sum);
  const at::Tensor torsions = at::cross_entropy_loss(logits.bins_TV, in("bins_T"), {}, at::Reduction::Sum);
  (fragments / in("kinds_N").numel() + torsions / in("bins_T").numel()).backward();
  NamedTensors out = {{"sums", at::stack({fragments, torsions})}};
  for (const NamedTensor& parameter : model.parameters()) {
    out.push_back({"grad/" + parameter.name, parameter.tensor.grad()});
  }
  return out;
}

Status run(const std::string& what, const Flags& flags) {
  PosixFileSystem files;
  const MdmModel model({}, at::Device(at::kCPU));
  TRY_ASSIGN(const NamedTensors weights, load_weights(files, flags.at("weights")));
  TRY(copy_tensors(weights, model.parameters(), flags.at("weights")));
  TRY_ASSIGN(const NamedTensors input, load_weights(files, flags.at("input")));
  return save_weights(files, flags.at("out"), repeated(flags, [&] { return work(what, model, input); }));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::dump_main(argc, argv, lockstep::run); }
