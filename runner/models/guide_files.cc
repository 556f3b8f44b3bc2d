#include "runner/models/guide_files.h"

#include "runner/models/adam_state_dict.h"

namespace lockstep {
namespace {

constexpr std::string_view kBestModel = "best_model.";
constexpr std::string_view kCheckpointEpoch = "checkpoint_epoch_";

}  // namespace

std::vector<std::string> guide_files(const Workload::EvaluationReport& report, bool is_best, int64_t epochs_between,
                                     const std::string& extension) {
  std::vector<std::string> files;
  if (is_best) files.push_back(std::string(kBestModel) + extension);
  if (report.ends_epoch && report.epoch > 0 && report.epoch % epochs_between == 0) {
    files.push_back(std::string(kCheckpointEpoch) + std::to_string(report.epoch) + "." + extension);
  }
  return files;
}

bool is_guide_file(std::string_view name) { return name.starts_with(kBestModel) || name.starts_with(kCheckpointEpoch); }

TorchTree guide_tree(PickleDict first, const std::vector<std::pair<std::string, NamedTensors>>& weights,
                     const NamedTensors& parameters, const TrainingOptions& training,
                     const Workload::OutputState& state) {
  TorchTree tree;
  tree.root = std::move(first);
  for (const auto& [name, tensors] : weights) tree.root.emplace_back(name, tree.value(tensors));
  tree.root.emplace_back("optimizer_state_dict", PickleValue{adam_state_dict(parameters, training, state, tree)});
  return tree;
}

}  // namespace lockstep
