// GuideFiles: the weight files of the guide, best_model.pth and checkpoint_epoch_N.pth, as its Python opens them:
// {epoch, model_state_dict, optimizer_state_dict, scheduler_state_dict, loss}.
//
// Role: which of them an evaluation leaves, and what is in them. Threads: as Workload.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/checkpoint/weights.h"
#include "runner/config/run_config.h"
#include "runner/models/workload.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// "Epoch 10: valid loss 0.1234", of the figure `loss`; none where the evaluation has no such figure.
std::vector<std::string> valid_loss_lines(const Workload::EvaluationReport& report, std::string_view loss);

class GuideFiles {
 public:
  // A checkpoint_epoch_N.pth after each evaluation at a multiple of `save_interval` epochs.
  explicit GuideFiles(int64_t save_interval) : save_interval_(save_interval) {}

  // The files to write after this evaluation. `loss` names the figure that decides which one is the best. Called once
  // for each evaluation: it remembers the best value.
  std::vector<std::string> outputs(const Workload::EvaluationReport& report, std::string_view loss);
  // Is it one of those names?
  static bool is_one(std::string_view name);
  // `parameters`: all of the network, also those that are not trained, in the order of the Python module's. The
  // weights are those that the evaluation looked at: with --ema_decay their average. "epoch" counts from 0, as in the
  // guide.
  static TorchTree content(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, std::string_view loss);

  // As Workload's.
  [[nodiscard]] Json progress_state() const;
  Status restore_progress(const Json& state);
  Result<Workload::FilePast> restore_from_file(const Json& fields);

 private:
  int64_t save_interval_;
  std::optional<double> best_loss_;
};

}  // namespace lockstep
