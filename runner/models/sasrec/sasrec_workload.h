// SasrecWorkload: SASRec and TiSASRec behind the Workload interface.
//
// Role: joins data, network and evaluation; knows the file names and console lines of the guide.
// Ownership: owns the data and the parameters.
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/sasrec/sasrec_data.h"
#include "runner/models/sasrec/sasrec_evaluation.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sequence_model.h"
#include "runner/models/workload.h"

namespace lockstep {

struct SasrecBatch final : MicroBatch {
  at::Tensor ids_3BT;   // int64: input, positives, negatives
  at::Tensor times_BT;  // int64: of the input; undefined without times
  DropoutKey dropout;
  double positions = 0.0;  // with a positive
  int64_t samples = 0;

  [[nodiscard]] double weight() const override { return positions; }
  [[nodiscard]] int64_t num_samples() const override { return samples; }
};

class SasrecWorkload final : public Workload {
 public:
  // Errors (kInvalid): see SasrecData::create.
  // The variant is one of the options.
  static Result<std::unique_ptr<SasrecWorkload>> create(const RunConfig& config, Dataset dataset, at::Device device);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] int version() const override { return 1; }
  [[nodiscard]] std::vector<NamedTensor> parameters() const override { return model_->parameters(); }
  [[nodiscard]] std::vector<NamedTensor> buffers() const override { return {}; }
  void initialize(uint64_t seed) override { model_->initialize(seed); }

  [[nodiscard]] int64_t num_samples() const override { return data_.num_users(); }
  [[nodiscard]] LastBatch last_batch() const override { return LastBatch::kShort; }
  [[nodiscard]] double flops_per_sample() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  std::unique_ptr<MicroBatch> make_batch(const MicroBatchSpec& spec) override;
  // `batch` is one of make_batch's. Binary cross-entropy of the positive plus that of the negative, summed over the
  // positions that have a positive.
  at::Tensor loss_sum(const MicroBatch& batch) override;
  at::Tensor regularization() override;

  std::vector<MetricSum> evaluate(const EvaluationShard& shard) override;
  [[nodiscard]] std::string best_metric() const override { return "valid_ndcg@10"; }
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  [[nodiscard]] std::string log_header() const override;
  [[nodiscard]] std::string log_line(const EvaluationReport& report) const override;
  std::string reference_weight_file(const EvaluationReport& report) override;
  [[nodiscard]] Json progress_state() const override;
  Status restore_progress(const Json& state) override;

  [[nodiscard]] const SequenceModel& model() const { return *model_; }
  [[nodiscard]] const SasrecData& data() const { return data_; }

 private:
  SasrecWorkload(const RunConfig& config, SasrecData data, at::Device device);

  std::string name_ = "sasrec";
  SasrecOptions options_;
  double lr_;
  at::Device device_;
  SasrecData data_;
  std::string memory_text_;  // item_memory_text
  std::unique_ptr<SequenceModel> model_;
  std::vector<double> best_;  // of the four figures in kSavedMetrics' order; 0 before the first evaluation
};

}  // namespace lockstep
