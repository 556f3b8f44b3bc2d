// A workload that uses each part of the seam (runner/models/workload.h) and is small enough to follow by hand: a number
// is read from a "sentence" of 1 to 7 words, and its sign as well.
//
//   words  [n, 7]   the sentence, right-aligned, zeros on the left
//   table  [8, 4]   frozen: what each word means
//   trunk  [4, 4], number [4], sign [4]
//   offset [1]      a buffer: by how much numbers are read too high, a running mean over the evaluations
//
// Two loss terms with denominators of their own, and a penalty on large weights; batches packed by words, whose number
// differs from epoch to epoch; two groups of parameters. A low loss makes the best weights, and a high likelihood keeps
// the rate up. Two phases: in the first one the trunk stays as it is, and what it makes of each word is looked up in a
// table. An evaluation leaves the best weights, from which a run may go on, and a text to which each rank adds the
// sentences that it has read.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/sha256.h"
#include "runner/config/run_config.h"
#include "runner/contract/run_folder_layout.h"
#include "runner/data/sampler.h"
#include "runner/kernels/dropout.h"
#include "runner/layers/initial_values.h"
#include "runner/models/adam_state_dict.h"
#include "runner/models/workload.h"

namespace lockstep {

struct ToyOptions {
  int64_t samples = 40;
  int64_t phase_epochs = 2;       // of each of the two phases; 0: there are none
  bool is_even = false;           // every sentence has one word, and every epoch has every sentence
  int64_t table_pitch = 1;        // of the frozen table of words
  TrainingOptions training = {};  // what the file of the best weights says of the optimizer
};

// For tests that count steps: one phase of equal epochs, of `samples` sentences.
inline ToyOptions even_toy(int64_t samples) { return {.samples = samples, .phase_epochs = 0, .is_even = true}; }

// Each epoch's permutation, cut whenever a batch has `words_max` words.
class PackedBatches final : public BatchSource {
 public:
  PackedBatches(uint64_t seed, const ToyOptions& options, int64_t words_max)
      : seed_(seed), options_(options), words_max_(words_max) {}

  static int64_t words_of(const ToyOptions& options, int64_t sample) {
    return options.is_even ? 1 : 1 + sample * 5 % 7;
  }

  int64_t steps(int64_t epoch) override { return static_cast<int64_t>(packed(epoch).size()); }
  std::vector<int64_t> batch(int64_t epoch, int64_t index) override {
    return packed(epoch).at(static_cast<size_t>(index));
  }
  [[nodiscard]] int64_t cost(int64_t sample) const override { return words_of(options_, sample); }

 private:
  const std::vector<std::vector<int64_t>>& packed(int64_t epoch) {
    if (epoch == cached_) return batches_;
    cached_ = epoch;
    batches_ = {{}};
    int64_t words = 0;
    // A part of the samples each time: epochs are not equally long.
    const int64_t left_out = options_.is_even ? 0 : epoch % 3 * 4;
    const std::vector<int64_t> order = epoch_order(seed_, epoch, options_.samples);
    for (size_t i = 0; i + static_cast<size_t>(left_out) < order.size(); ++i) {
      if (!batches_.back().empty() && words + cost(order[i]) > words_max_) {
        batches_.emplace_back();
        words = 0;
      }
      batches_.back().push_back(order[i]);
      words += cost(order[i]);
    }
    return batches_;
  }

  uint64_t seed_;
  ToyOptions options_;
  int64_t words_max_;
  int64_t cached_ = -1;
  std::vector<std::vector<int64_t>> batches_;
};

// The number of one sentence.
struct ToyReading {
  double written = 0.0;
  double read = 0.0;
};

class ToyWorkload : public Workload {
 public:
  static constexpr int64_t kLength = 7;
  static constexpr int64_t kWidth = 4;
  static constexpr int64_t kValidated = 12;  // sentences
  static constexpr const char* kBestFile = "best_model.pt";
  static constexpr const char* kTextFile = "sentences.txt";
  static constexpr const char* kTooHigh = "valid_too_high";       // figures beside those of the loss terms
  static constexpr const char* kLikelihood = "valid_likelihood";  // of the right sign

  explicit ToyWorkload(const ToyOptions& options = {}) : options_(options) {
    if (options.phase_epochs > 0) {
      info_.phases = {{.name = "heads", .num_epochs = options.phase_epochs, .lr = 0.1, .frozen = {"trunk"}},
                      {.name = "whole", .num_epochs = options.phase_epochs, .clip_grad_norm = 1.0}};
    }
    ToyWorkload::initialize(1);
  }

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override {
    return {{.name = "trunk", .parameters = {{"trunk", trunk_}}, .lr_factor = 0.5, .weight_decay = 0.01},
            {.name = "heads", .parameters = {{"number", number_}, {"sign", sign_}}, .weight_decay = std::nullopt}};
  }
  [[nodiscard]] NamedTensors buffers() const override { return {{"offset", offset_}}; }
  [[nodiscard]] std::vector<FrozenInput> frozen() const override {
    const std::string bytes(static_cast<const char*>(table_.data_ptr()), static_cast<size_t>(table_.nbytes()));
    return {{.name = "the table of words", .sha256 = sha256_hex(bytes)}};
  }
  void initialize(uint64_t seed) override {
    const torch::NoGradGuard no_grad;
    trunk_.copy_(torch::eye(kWidth) + 0.1);
    number_.copy_(torch::linspace(-0.2, 0.4, kWidth));
    sign_.copy_(InitialValues(seed, /*parameter=*/2).normal(sign_.sizes(), 0.2));
    offset_.zero_();
  }
  [[nodiscard]] Json shared_facts() const override { return {{"number of sentences", options_.samples}}; }
  [[nodiscard]] double flops_per_sample() const override { return 6.0 * kLength * kWidth * kWidth; }
  [[nodiscard]] std::string memory_advice() const override { return "no flag makes the model smaller"; }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override {
    return {{"sentences", std::to_string(options_.samples) + " train, " + std::to_string(kValidated) + " validate"}};
  }

  // Training: packed by words, as many as the batch's "samples". Validation: twelve sentences.
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    if (options.split == Split::kValidation) {
      return Sampler::create({.seed = options.seed, .num_samples = kValidated, .global_batch = options.global_batch});
    }
    return std::unique_ptr<BatchSource>(std::make_unique<PackedBatches>(options.seed, options_, options.global_batch));
  }

  // "words_NT", as small numbers, and "gain_N".
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    const auto n = static_cast<int64_t>(share.samples.size());
    const at::Tensor words_NT = torch::zeros({n, kLength}, torch::kByte);
    const at::Tensor gain_N = torch::ones({n});
    double words = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sample = share.samples[static_cast<size_t>(i)];
      if (sample == unreadable_sample) return Error{ErrorCode::kCorrupt, "sentence 13 is torn"};
      if (sample == poisoned_sample) gain_N[i] = std::numeric_limits<float>::quiet_NaN();
      const int64_t count = PackedBatches::words_of(options_, sample);
      for (int64_t t = kLength - count; t < kLength; ++t) words_NT[i][t] = 1 + (sample + t * t) % kLength;
      words += static_cast<double>(count);
    }
    return HostBatch{.tensors = {{"words_NT", words_NT}, {"gain_N", gain_N}},
                     .weights = {words, static_cast<double>(n)}};
  }
  // Words that index a table.
  [[nodiscard]] NamedTensors upload(const HostBatch& batch, at::Device device) const override {
    NamedTensors tensors = Workload::upload(batch, device);
    tensors[0].tensor = tensors[0].tensor.to(torch::kLong);
    return tensors;
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
    const at::Tensor h_NTD = meaning(batch);
    const at::Tensor odd_N = words_NT.sum(1).remainder(2).to(torch::kFloat32);
    return {(h_NTD.matmul(number_).sum(1) - number_of(words_NT)).square().sum(),
            torch::binary_cross_entropy_with_logits(h_NTD.sum(1).matmul(sign_), odd_N, {}, {}, at::Reduction::Sum)};
  }

  at::Tensor regularization() override { return number_.square().sum() * 0.001; }

  [[nodiscard]] Result<ToyReading> read(int64_t sentence, at::Device device) const {
    const BatchShare share{.samples = {sentence}};
    TRY_ASSIGN(const HostBatch fetched, fetch(share));
    const DeviceBatch batch{.share = share, .tensors = upload(fetched, device), .is_training = false};
    return ToyReading{.written = number_of(batch["words_NT"]).item<double>(),
                      .read = (meaning(batch).matmul(number_).sum() - offset_).item<double>()};
  }
  static std::string line_of(int64_t sentence, const ToyReading& reading) {
    std::array<char, 64> line{};
    std::snprintf(line.data(), line.size(), "sentence %lld: %.3f\n", static_cast<long long>(sentence), reading.read);
    return line.data();
  }

  // Adds the sentences of this rank to the text, with what was read in them.
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override {
    TRY_ASSIGN(std::vector<MetricSum> sums, Workload::evaluate(shard));
    MetricSum too_high{.name = kTooHigh};
    const SlotRange mine = share_of(shard.rank, shard.world_size, kValidated);
    std::string text;
    for (int64_t sentence = mine.begin; sentence < mine.end && shard.goes_on(); ++sentence) {
      TRY_ASSIGN(const ToyReading reading, read(sentence, shard.device));
      too_high.sum += reading.read - reading.written;
      too_high.count += 1.0;
      text += line_of(sentence, reading);
    }
    shard.give_part(kTextPart, std::move(text));
    sums.push_back(too_high);
    return sums;
  }
  [[nodiscard]] EvaluationMetrics figures(const std::vector<MetricSum>& totals) const override {
    EvaluationMetrics means = Workload::figures(totals);
    constexpr const char* kSignLoss = "valid_sign";  // evaluations of tests may lack it
    if (has_metric(means, kSignLoss)) means.emplace_back(kLikelihood, std::exp(-metric_value(means, kSignLoss)));
    return means;
  }

  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override {
    return {"epoch " + std::to_string(report.epoch) + ": " + info_.best.name + " " + best_figure(report)};
  }
  [[nodiscard]] std::string log_header() const override { return "epoch " + info_.best.name; }
  [[nodiscard]] std::string log_line(const EvaluationReport& report) const override {
    return std::to_string(report.epoch) + " " + best_figure(report);
  }
  std::vector<std::string> outputs(const EvaluationReport& report) override {
    // A buffer may change here, where all ranks have the same figures, and nowhere else.
    offset_.add_(0.5 * metric_value(report.metrics, kTooHigh));
    std::vector<std::string> files = {output_path({.step = report.step, .name = kTextFile})};
    const double loss = metric_value(report.metrics, info_.best.name);
    if (loss < best_) files.emplace_back(kBestFile);
    best_ = std::min(best_, loss);
    return files;
  }
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override {
    if (name == kBestFile) {
      TorchTree tree;
      tree.root = {{"epoch", {state.epoch}},
                   {"best", {metric_value(state.metrics, info_.best.name)}},
                   {"model_state_dict", tree.value(state.model)},
                   {"optimizer_state_dict", {adam_state_dict(parameters_of(*this), options_.training, state, tree)}}};
      return tree;
    }
    if (!name.ends_with(kTextFile)) return Workload::output(name, state);
    const auto part = state.parts.find(kTextPart);
    return part == state.parts.end() ? std::string("what the ranks had read is lost\n") : part->second;
  }
  [[nodiscard]] Json progress_state() const override {
    return Json{{"best", best_ < std::numeric_limits<double>::infinity() ? Json(best_) : Json(nullptr)}};
  }
  Status restore_progress(const Json& state) override {
    if (!state.contains("best")) return Error{ErrorCode::kCorrupt, "the toy's best loss is missing"};
    best_ = state.at("best").is_null() ? std::numeric_limits<double>::infinity() : state.at("best").get<double>();
    return {};
  }
  // Weights that were saved without the buffer begin with its first value.
  [[nodiscard]] Result<NamedTensors> weights_of_file(NamedTensors file) const override {
    const auto is_offset = [](const NamedTensor& tensor) { return tensor.name == "offset"; };
    if (std::none_of(file.begin(), file.end(), is_offset)) file.push_back({"offset", torch::zeros({1})});
    return file;
  }
  // --resume best_model.pt
  Result<TrainingSoFar> restore_from_file(const Json& fields) override {
    TRY_ASSIGN(const double epochs, figure_in(fields, "epoch"));
    TRY_ASSIGN(best_, figure_in(fields, "best"));
    return TrainingSoFar{.epochs = static_cast<int64_t>(epochs), .figures = {best_}};
  }

  int64_t unreadable_sample = -1;  // its fetch fails
  int64_t poisoned_sample = -1;    // its loss is not a number
  int64_t unenterable_phase = -1;  // entering it fails
  int times_entered = 0;
  std::function<void(int64_t phase, const std::function<bool()>& goes_on)> in_enter_phase;  // once

 protected:
  WorkloadInfo info_{.name = "toy",
                     .version = 1,
                     .loss_terms = {{.name = "number"}, {.name = "sign", .coefficient = 0.5, .denominator = 20.0}},
                     .best = {.name = "valid_number", .direction = Direction::kLower},
                     .plateau = DecidingFigure{.name = kLikelihood, .direction = Direction::kHigher}};

 private:
  static constexpr const char* kTextPart = "sentences";  // of an evaluation

  [[nodiscard]] std::string best_figure(const EvaluationReport& report) const {
    return std::to_string(metric_value(report.metrics, info_.best.name));
  }
  static at::Tensor number_of(const at::Tensor& words_NT) { return words_NT.sum(1).to(torch::kFloat32) / 10.0; }

  // What the trunk makes of each word; zeros where there is none.
  [[nodiscard]] at::Tensor meaning(const DeviceBatch& batch) const {
    const at::Tensor& words_NT = batch["words_NT"];
    const auto dropped = [&](const at::Tensor& values_NTD) {
      const BatchShare& share = batch.share;
      if (!batch.is_training) return values_NTD;
      return philox_dropout(values_NTD, 0.25,
                            {.seed = share.seed, .step = share.step, .first_slot = share.first_slot, .layer = 0});
    };
    const at::Tensor h_NTD = looked_up_.defined() ? dropped(looked_up_.index({words_NT}))
                                                  : torch::tanh(dropped(table_.index({words_NT})).matmul(trunk_));
    return h_NTD * words_NT.ne(0).unsqueeze(-1) * batch["gain_N"].view({-1, 1, 1});
  }

  ToyOptions options_;
  at::Tensor table_ =
      torch::sin(torch::arange(32, torch::kFloat32) * options_.table_pitch).reshape({8, kWidth}).contiguous();
  at::Tensor trunk_ = torch::zeros({kWidth, kWidth}).requires_grad_();
  at::Tensor number_ = torch::zeros({kWidth}).requires_grad_();
  at::Tensor looked_up_;  // [8, 4], in the first phase: what the trunk makes of each word
  at::Tensor sign_ = torch::zeros({kWidth}).requires_grad_();
  at::Tensor offset_ = torch::zeros({1});
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace lockstep
