// GuideFiles: the guide's weight files best_model.pth and checkpoint_epoch_N.pth, which its Python code can open:
// {epoch, model_state_dict, optimizer_state_dict, scheduler_state_dict, loss}.
//
// Role: decides which of them to write after an evaluation, and makes their content. Threads: as Workload.
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

// The line "Epoch 10: valid loss 0.1234" with the figure named `loss`; none where the evaluation has no such figure.
std::vector<std::string> valid_loss_lines(const Workload::EvaluationReport& report, std::string_view loss);

class GuideFiles {
 public:
  // Writes a checkpoint_epoch_N.pth after each evaluation whose epoch is a multiple of `save_interval`.
  explicit GuideFiles(int64_t save_interval) : save_interval_(save_interval) {}

  // The files to write after this evaluation. `loss` names the figure that decides which weights are the best. Call it
  // once per evaluation: it remembers the best value.
  std::vector<std::string> outputs(const Workload::EvaluationReport& report, std::string_view loss);
  // Whether `name` is the name of one of these files.
  static bool is_guide_file(std::string_view name);
  // `parameters`: all of the network's, including those that are not trained, in the order of the Python module. The
  // weights in the file are those of the evaluation: with --ema_decay, the average. "epoch" counts from 0, as in the
  // guide.
  static TorchTree content(const NamedTensors& parameters, const TrainingOptions& training,
                           const Workload::OutputState& state, std::string_view loss);

  // As in Workload.
  [[nodiscard]] Json progress_state() const;
  Status restore_progress(const Json& state);
  Result<Workload::TrainingSoFar> restore_from_file(const Json& fields);

 private:
  int64_t save_interval_;
  std::optional<double> best_loss_;
};

}  // namespace lockstep
