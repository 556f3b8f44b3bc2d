// A workload small enough to follow by hand: fit w·x with x from the sample's number, in memory, with dropout.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/kernels/dropout.h"
#include "runner/models/workload.h"

namespace lockstep {

class LineWorkload : public Workload {
 public:
  static constexpr int64_t kWidth = 4;

  explicit LineWorkload(int64_t samples) : samples_(samples) { initialize(1); }

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] int version() const override { return 1; }
  [[nodiscard]] std::vector<NamedTensor> parameters() const override { return {{"w", w_}, {"b", b_}}; }
  [[nodiscard]] std::vector<NamedTensor> buffers() const override { return {}; }
  void initialize(uint64_t /*seed*/) override {
    const torch::NoGradGuard no_grad;
    w_.copy_(torch::linspace(0.1, 0.4, kWidth));
    b_.zero_();
  }
  [[nodiscard]] int64_t num_samples() const override { return samples_; }
  [[nodiscard]] LastBatch last_batch() const override { return LastBatch::kShort; }
  [[nodiscard]] double flops_per_sample() const override { return 6.0 * kWidth; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override { return {}; }

  struct Batch final : MicroBatch {
    at::Tensor x;
    DropoutKey dropout;
    double total_weight = 0.0;
    [[nodiscard]] double weight() const override { return total_weight; }
    [[nodiscard]] int64_t num_samples() const override { return x.size(0); }
  };

  std::unique_ptr<MicroBatch> make_batch(const MicroBatchSpec& spec) override {
    auto batch = std::make_unique<Batch>();
    const auto n = static_cast<int64_t>(spec.samples.size());
    batch->x = torch::empty({n, kWidth});
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = spec.samples[static_cast<size_t>(i)];
      for (int64_t j = 0; j < kWidth; ++j) {
        batch->x[i][j] = std::sin(static_cast<double>(sample * kWidth + j));
      }
      if (sample == poisoned_sample) batch->x[i][0] = std::numeric_limits<float>::quiet_NaN();
      batch->total_weight += 1.0 + static_cast<double>(sample % 3);  // uneven: ranks carry different weights
    }
    batch->dropout = DropoutKey{.seed = spec.seed, .step = spec.step, .first_slot = spec.first_slot, .layer = 0};
    return batch;
  }

  at::Tensor loss_sum(const MicroBatch& batch) override {
    const auto& b = static_cast<const Batch&>(batch);
    return (philox_dropout(b.x, 0.25, b.dropout).matmul(w_) + b_ - 1.0).square().sum();
  }

  std::vector<MetricSum> evaluate(const EvaluationShard& /*shard*/) override { return {}; }
  [[nodiscard]] std::string best_metric() const override { return "none"; }
  std::vector<std::string> evaluation_lines(const EvaluationReport& /*report*/) override { return {}; }
  std::string reference_weight_file(const EvaluationReport& /*report*/) override { return {}; }

  int64_t poisoned_sample = -1;  // its features hold a NaN

 private:
  std::string name_ = "line";
  int64_t samples_;
  at::Tensor w_ = torch::zeros({kWidth}).requires_grad_();
  at::Tensor b_ = torch::zeros({1}).requires_grad_();
};

}  // namespace lockstep
