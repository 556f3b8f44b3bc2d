// A workload that uses each part of the seam (runner/models/workload.h) and is small enough to follow by hand: a number
// is read from a "sentence" of 1 to 7 words, and its sign as well.
//
//   words  [n, 7]   the sentence, right-aligned, zeros on the left
//   table  [8, 4]   frozen: what each word means
//   trunk  [4, 4], number [4], sign [4]
//
// Two loss terms with denominators of their own; batches packed by words, whose number differs from epoch to epoch; two
// groups of parameters; evaluation and figures as the seam has them by default. Two phases: in the first one the trunk
// stays as it is, and what it makes of each word is looked up in a table.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/sha256.h"
#include "runner/data/sampler.h"
#include "runner/kernels/dropout.h"
#include "runner/models/workload.h"

namespace lockstep {

inline int64_t words_of(int64_t sample) { return 1 + sample * 5 % 7; }

// Each epoch's permutation, cut whenever a batch has `words_max` words.
class PackedBatches final : public BatchSource {
 public:
  PackedBatches(uint64_t seed, int64_t samples, int64_t words_max)
      : seed_(seed), samples_(samples), words_max_(words_max) {}

  int64_t steps(int64_t epoch) override { return static_cast<int64_t>(packed(epoch).size()); }
  std::vector<int64_t> batch(int64_t epoch, int64_t index) override {
    return packed(epoch).at(static_cast<size_t>(index));
  }
  [[nodiscard]] int64_t cost(int64_t sample) const override { return words_of(sample); }

 private:
  const std::vector<std::vector<int64_t>>& packed(int64_t epoch) {
    if (epoch == cached_) return batches_;
    cached_ = epoch;
    batches_ = {{}};
    int64_t words = 0;
    // A part of the samples each time: epochs are not equally long.
    const std::vector<int64_t> order = epoch_order(seed_, epoch, samples_);
    for (size_t i = 0; i + static_cast<size_t>(epoch % 3) * 4 < order.size(); ++i) {
      if (words + words_of(order[i]) > words_max_) {
        batches_.emplace_back();
        words = 0;
      }
      batches_.back().push_back(order[i]);
      words += words_of(order[i]);
    }
    return batches_;
  }

  uint64_t seed_;
  int64_t samples_;
  int64_t words_max_;
  int64_t cached_ = -1;
  std::vector<std::vector<int64_t>> batches_;
};

class ToyWorkload : public Workload {
 public:
  static constexpr int64_t kSamples = 40;
  static constexpr int64_t kLength = 7;
  static constexpr int64_t kWidth = 4;

  ToyWorkload() { ToyWorkload::initialize(1); }

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override {
    return {{.name = "trunk", .parameters = {{"trunk", trunk_}}, .lr_factor = 0.5, .weight_decay = 0.01},
            {.name = "heads", .parameters = {{"number", number_}, {"sign", sign_}}, .weight_decay = std::nullopt}};
  }
  [[nodiscard]] std::vector<FrozenTensors> frozen() const override {
    const std::string bytes(static_cast<const char*>(table_.data_ptr()), static_cast<size_t>(table_.nbytes()));
    return {{.name = "the table of words", .sha256 = sha256_hex(bytes)}};
  }
  void initialize(uint64_t /*seed*/) override {
    const torch::NoGradGuard no_grad;
    trunk_.copy_(torch::eye(kWidth) + 0.1);
    number_.copy_(torch::linspace(-0.2, 0.4, kWidth));
    sign_.copy_(torch::linspace(0.3, -0.3, kWidth));
  }
  [[nodiscard]] double flops_per_sample() const override { return 6.0 * kLength * kWidth * kWidth; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override { return {}; }

  // Training: packed by words, as many as the batch's "samples". Validation: twelve sentences.
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    if (options.split == Split::kValidation) {
      return Sampler::create({.seed = options.seed, .num_samples = 12, .global_batch = options.global_batch});
    }
    return std::unique_ptr<BatchSource>(std::make_unique<PackedBatches>(options.seed, kSamples, options.global_batch));
  }

  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    const auto n = static_cast<int64_t>(share.samples.size());
    const at::Tensor words_NT = torch::zeros({n, kLength}, torch::kLong);
    double words = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = share.samples[static_cast<size_t>(i)];
      if (sample == unreadable_sample) return Error{ErrorCode::kCorrupt, "sentence 13 is torn"};
      for (int64_t t = kLength - words_of(sample); t < kLength; ++t) words_NT[i][t] = 1 + (sample + t * t) % kLength;
      words += static_cast<double>(words_of(sample));
    }
    return HostBatch{.tensors = {{"words_NT", words_NT}}, .weights = {words, static_cast<double>(n)}};
  }

  Status enter_phase(int64_t phase, const std::function<bool()>& goes_on) override {
    ++times_entered;
    if (in_enter_phase) std::exchange(in_enter_phase, nullptr)(phase, goes_on);
    if (unenterable_phase == phase) return Error{ErrorCode::kCorrupt, "the words of phase 2 are torn"};
    if (!goes_on()) return {};
    looked_up_ = phase == 0 ? torch::tanh(table_.matmul(trunk_)) : at::Tensor();
    return {};
  }

  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    const at::Tensor& words_NT = batch["words_NT"];
    const auto dropped = [&](const at::Tensor& values_NTD) {
      const BatchShare& share = batch.share;
      if (!batch.is_training) return values_NTD;
      return philox_dropout(values_NTD, 0.25,
                            {.seed = share.seed, .step = share.step, .first_slot = share.first_slot, .layer = 0});
    };
    at::Tensor h_NTD = looked_up_.defined() ? dropped(looked_up_.index({words_NT}))
                                            : torch::tanh(dropped(table_.index({words_NT})).matmul(trunk_));
    h_NTD = h_NTD * words_NT.ne(0).unsqueeze(-1);
    const at::Tensor sum_N = words_NT.sum(1).to(torch::kFloat32) / 10.0;
    const at::Tensor odd_N = words_NT.sum(1).remainder(2).to(torch::kFloat32);
    return {(h_NTD.matmul(number_).sum(1) - sum_N).square().sum(),
            torch::binary_cross_entropy_with_logits(h_NTD.sum(1).matmul(sign_), odd_N, {}, {}, at::Reduction::Sum)};
  }

  std::vector<std::string> evaluation_lines(const EvaluationReport& /*report*/) override { return {}; }

  int64_t unreadable_sample = -1;  // its fetch fails
  int64_t unenterable_phase = -1;  // entering it fails
  int times_entered = 0;
  std::function<void(int64_t phase, const std::function<bool()>& goes_on)> in_enter_phase;  // once

 protected:
  WorkloadInfo info_{.name = "toy",
                     .version = 1,
                     .loss_terms = {{.name = "number"}, {.name = "sign", .coefficient = 0.5, .denominator = 20.0}},
                     .best = {.name = "valid_number", .direction = Direction::kLower},
                     .phases = {{.name = "heads", .num_epochs = 2, .lr = 0.1, .frozen = {"trunk"}},
                                {.name = "whole", .num_epochs = 2, .clip_grad_norm = 1.0}}};

 private:
  at::Tensor table_ = torch::sin(torch::arange(32, torch::kFloat32)).reshape({8, kWidth}).contiguous();
  at::Tensor trunk_ = torch::zeros({kWidth, kWidth}).requires_grad_();
  at::Tensor number_ = torch::zeros({kWidth}).requires_grad_();
  at::Tensor looked_up_;  // [8, 4], in the first phase: what the trunk makes of each word
  at::Tensor sign_ = torch::zeros({kWidth}).requires_grad_();
};

}  // namespace lockstep
