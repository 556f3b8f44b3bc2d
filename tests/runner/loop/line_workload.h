// A workload small enough to follow by hand: fit w·x with x from the sample's number, in memory, with dropout.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/data/sampler.h"
#include "runner/kernels/dropout.h"
#include "runner/models/workload.h"

namespace lockstep {

class LineWorkload : public Workload {
 public:
  static constexpr int64_t kWidth = 4;

  explicit LineWorkload(int64_t samples) : samples_(samples) { initialize(1); }

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override {
    return {{.name = "", .parameters = {{"w", w_}, {"b", b_}}, .weight_decay = std::nullopt}};
  }
  void initialize(uint64_t /*seed*/) override {
    const torch::NoGradGuard no_grad;
    w_.copy_(torch::linspace(0.1, 0.4, kWidth));
    b_.zero_();
  }
  [[nodiscard]] double flops_per_sample() const override { return 6.0 * kWidth; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override { return {}; }

  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    return Sampler::create({.seed = options.seed, .num_samples = samples_, .global_batch = options.global_batch});
  }

  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    const auto n = static_cast<int64_t>(share.samples.size());
    const at::Tensor x = torch::empty({n, kWidth});
    double weight = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = share.samples[static_cast<size_t>(i)];
      for (int64_t j = 0; j < kWidth; ++j) {
        x[i][j] = std::sin(static_cast<double>(sample * kWidth + j));
      }
      if (sample == poisoned_sample) x[i][0] = std::numeric_limits<float>::quiet_NaN();
      weight += 1.0 + static_cast<double>(sample % 3);  // uneven: ranks carry different weights
    }
    return HostBatch{.tensors = {{"x", x}}, .weights = {weight}};
  }

  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    const DropoutKey dropout{
        .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0};
    return {(philox_dropout(batch["x"], 0.25, dropout).matmul(w_) + b_ - 1.0).square().sum()};
  }

  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& /*shard*/) override {
    return std::vector<MetricSum>();
  }
  std::vector<std::string> evaluation_lines(const EvaluationReport& /*report*/) override { return {}; }

  int64_t poisoned_sample = -1;  // its features hold a NaN

 protected:
  WorkloadInfo info_{.name = "line", .version = 1, .loss_terms = {{.name = "loss"}}, .best = {.name = "none"}};

 private:
  int64_t samples_;
  at::Tensor w_ = torch::zeros({kWidth}).requires_grad_();
  at::Tensor b_ = torch::zeros({1}).requires_grad_();
};

}  // namespace lockstep
