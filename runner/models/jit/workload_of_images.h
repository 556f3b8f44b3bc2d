// ImageWorkload: what JiT and its variant for tokens have in common: images and their split, and the guide's weight
// files best_model.pth and checkpoint_epoch_N.pth, which its Python code can open: {epoch, model_state_dict,
// optimizer_state_dict, scheduler_state_dict, loss}.
// Ownership: owns the images. Threads: as Workload.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/jit/data/prepare_images.h"
#include "runner/models/jit/image_split.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/workload.h"

namespace lockstep {

// FLOPs of a step over those of its forward: the backward takes twice as many.
inline constexpr double kPassesOfStep = 3.0;

class ImageWorkload : public Workload {
 public:
  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::string memory_advice() const override { return jit_memory_advice(options_, training_.use_amp); }
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    return split_.batches(options);
  }
  // "Epoch 10: valid loss 0.1234"
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  // The guide's weight files: best_model.pth, and a checkpoint_epoch_N.pth after each evaluation whose epoch is a
  // multiple of --save_interval.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  [[nodiscard]] Json progress_state() const override;
  Status restore_progress(const Json& state) override;
  Result<TrainingSoFar> restore_from_file(const Json& fields) override;

 protected:
  ImageWorkload(const RunConfig& config, PreparedImages images, at::Device device);

  // `parameters`: all of the network's, including those that are not trained, in the order of the Python module. The
  // weights in the file are those of the evaluation: with --ema_decay, the average. "epoch" counts from 0, as in the
  // guide.
  [[nodiscard]] TorchTree guide_file(const NamedTensors& parameters, const OutputState& state) const;

  WorkloadInfo info_;
  JitOptions options_;
  TrainingOptions training_;
  at::Device device_;
  PreparedImages images_;
  ImageSplit split_;

 private:
  std::optional<double> best_loss_;
};

}  // namespace lockstep
