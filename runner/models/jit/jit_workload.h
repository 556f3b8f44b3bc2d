// JitWorkload: JiT as a Workload.
//
// Role: joins images, network and loss. A sample is an image. Its noise, its time, whether it is mirrored and whether
// it is shown with its class depend only on (seed, epoch, image).
// Ownership: owns the parameters and the images. Threads: as Workload. Shapes: as in jit_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/jit/jit_model.h"
#include "runner/models/jit/workload_of_images.h"
#include "runner/models/registry.h"
#include "runner/models/workload.h"

namespace lockstep {

JitShape jit_shape(const JitOptions& options, int64_t num_classes);

// The names of the classes, in the workload's progress.
inline constexpr const char* kClassesField = "classes";

class JitWorkload final : public ImageWorkload {
 public:
  // Errors (kInvalid): no image is left to train on.
  static Result<std::unique_ptr<JitWorkload>> create(const RunConfig& config, PreparedImages images, at::Device device);

  // "decay" and "no_decay": parameters with one dimension have no weight decay.
  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  void initialize(uint64_t seed) override { model_.initialize(seed); }

  [[nodiscard]] Json shared_facts() const override { return {{"sha256 of the images", images_.cache.digest()}}; }
  [[nodiscard]] double flops_per_sample() const override { return kPassesOfStep * model_.flops_per_image(); }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  // The tensors: "pixels_BHHC" (bytes, not yet mirrored), "is_mirrored_B", "classes_B", "t_B", "noise_BCHH". The weight
  // is the number of images.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // The squared error of the velocity, averaged over an image's values and summed over the images.
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;

  // Computes the loss of the validation images, and makes this rank's part of the samples.
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override;
  // Also a contact sheet of samples, made from fixed noise with the classes in turn.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override;
  // Ignores the fixed position embedding in the file: the model computes its own.
  [[nodiscard]] Result<NamedTensors> weights_of_file(NamedTensors file) const override;
  [[nodiscard]] Json progress_state() const override;
  Status restore_progress(const Json& state) override;

 private:
  JitWorkload(const RunConfig& config, PreparedImages images, at::Device device);

  JitModel model_;
};

// PluginWorkload::make of this workload: with --data_format tokens it makes a PixelDlmWorkload.
WorkloadOrFailure make_jit(FileSystem& fs, const RunConfig& config, at::Device device,
                           const OnDataProgress& on_progress);

}  // namespace lockstep
