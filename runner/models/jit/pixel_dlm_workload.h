// PixelDlmWorkload: the guide's variant for texts as images behind the Workload interface.
//
// Role: joins pictures of tokens, network and objective. A sample is a text; its noise and its time are functions of
// (seed, epoch, text) alone. Ownership: owns the parameters and the pictures. Threads: as Workload. Shapes: as
// pixel_dlm_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/data/images/prepare_images.h"
#include "runner/models/jit/guide_files.h"
#include "runner/models/jit/image_split.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/jit/pixel_dlm_model.h"
#include "runner/models/workload.h"

namespace lockstep {

// Σ over the pixels that hold a token and their three channels of (the prediction, kept within [0, 1], − the picture)².
at::Tensor token_loss(const at::Tensor& predicted_BCHH, const at::Tensor& image_BCHH, const at::Tensor& is_token_BHH);

class PixelDlmWorkload final : public Workload {
 public:
  // pictures: of find_token_images. `tokenizer`: for people. Errors (kInvalid): no text is left to train on.
  static Result<std::unique_ptr<PixelDlmWorkload>> create(const RunConfig& config, PreparedImages pictures,
                                                          const std::string& tokenizer, at::Device device);

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  [[nodiscard]] NamedTensors buffers() const override { return model_.buffers(); }
  void initialize(uint64_t seed) override { model_.initialize(seed); }

  [[nodiscard]] Json shared_facts() const override { return {{"sha256 of the texts", pictures_.cache.digest()}}; }
  [[nodiscard]] double flops_per_sample() const override;
  [[nodiscard]] std::string memory_advice() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    return split_.batches(options);
  }
  // "pixels_BHHC" (bytes, white where there is no token), "t_B", "noise_BCHH". The weight is the number of tokens.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // token_loss.
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;

  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  // The guide's weight files.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override;
  [[nodiscard]] Json progress_state() const override { return files_.progress_state(); }
  Status restore_progress(const Json& state) override { return files_.restore_progress(state); }
  Result<FilePast> restore_from_file(const Json& fields) override { return files_.restore_from_file(fields); }

 private:
  PixelDlmWorkload(const RunConfig& config, PreparedImages pictures, std::string tokenizer, at::Device device);

  WorkloadInfo info_;
  JitOptions options_;
  TrainingOptions training_;
  at::Device device_;
  PreparedImages pictures_;
  std::string tokenizer_;
  PixelDlmModel model_;
  ImageSplit split_;
  GuideFiles files_;
};

}  // namespace lockstep
