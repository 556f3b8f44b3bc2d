// PixelDlmWorkload: the guide's variant of JiT for texts as images, as a Workload.
//
// Role: joins pictures of tokens, network and loss. A sample is a text; its noise and its time depend only on (seed,
// epoch, text).
// Ownership: owns the parameters. Threads: as Workload. Shapes: as in pixel_dlm_model.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/jit/pixel_dlm_model.h"
#include "runner/models/jit/workload_of_images.h"
#include "runner/models/registry.h"
#include "runner/models/workload.h"

namespace lockstep {

// Σ (clamp(prediction, 0, 1) − picture)² over the three channels of the pixels that hold a token.
at::Tensor token_loss(const at::Tensor& predicted_BCHH, const at::Tensor& image_BCHH, const at::Tensor& is_token_BHH);

class PixelDlmWorkload final : public ImageWorkload {
 public:
  // `pictures`: prepared from find_token_images. `tokenizer`: its name, for the start table. Errors (kInvalid): there
  // is no text to train on, or none is long enough.
  static Result<std::unique_ptr<PixelDlmWorkload>> create(const RunConfig& config, PreparedImages pictures,
                                                          const std::string& tokenizer, at::Device device);

  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  [[nodiscard]] NamedTensors buffers() const override { return model_.buffers(); }
  void initialize(uint64_t seed) override { model_.initialize(seed); }

  [[nodiscard]] Json shared_facts() const override { return {{"sha256 of the texts", images_.cache.digest()}}; }
  [[nodiscard]] double flops_per_sample() const override { return kPassesOfStep * model_.flops_per_image(); }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  // The tensors: "pixels_BHHC" (bytes, white where there is no token), "t_B", "noise_BCHH". The weight is the number of
  // tokens.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // token_loss.
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;

  [[nodiscard]] OutputContent output(const std::string& /*name*/, const OutputState& state) const override {
    return guide_file(model_.parameters(), state);
  }

 private:
  PixelDlmWorkload(const RunConfig& config, PreparedImages pictures, std::string tokenizer, at::Device device);

  std::string tokenizer_;
  PixelDlmModel model_;
};

// PluginWorkload::make of --data_format tokens.
WorkloadOrFailure make_pixel_dlm(FileSystem& fs, const RunConfig& config, at::Device device,
                                 const OnDataProgress& on_progress);

}  // namespace lockstep
