// SasrecWorkload: SASRec and TiSASRec as a Workload.
//
// Role: joins data, network and evaluation; names the weight files and prints the console lines like the guide.
// Ownership: owns the data and the parameters.
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/registry.h"
#include "runner/models/sasrec/sasrec_data.h"
#include "runner/models/sasrec/sasrec_evaluation.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sequence_model.h"
#include "runner/models/workload.h"

namespace lockstep {

class SasrecWorkload final : public Workload {
 public:
  // The workload's options select the variant, SASRec or TiSASRec.
  // Errors (kInvalid): those of SasrecData::create; the item table does not fit into memory (item_memory_text).
  static Result<std::unique_ptr<SasrecWorkload>> create(const RunConfig& config, Dataset dataset, at::Device device);

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  void initialize(uint64_t seed) override { model_->initialize(seed); }

  [[nodiscard]] Json shared_facts() const override;
  [[nodiscard]] double flops_per_sample() const override;
  [[nodiscard]] std::string memory_advice() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  // A sample is a user.
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override;
  // The tensors: "ids_3BT" (int64: input, positives, negatives) and, with times, "times_BT" (int64: the times of the
  // input). The weight is the number of positions that have a positive.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // Binary cross-entropy of the positive plus that of the negative, summed over the positions that have a positive.
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;
  at::Tensor regularization() override;

  // Without the rows of a time table that cannot be reached (cut_time_table).
  [[nodiscard]] Result<NamedTensors> weights_of_file(NamedTensors file) const override;

  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override;
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  [[nodiscard]] std::string log_header() const override;
  [[nodiscard]] std::string log_line(const EvaluationReport& report) const override;
  // The weight file, named as in the guide, whenever one of the four figures of kSavedMetrics improves.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  [[nodiscard]] Json progress_state() const override;
  Status restore_progress(const Json& state) override;

  [[nodiscard]] const SequenceModel& model() const { return *model_; }
  [[nodiscard]] const SasrecData& data() const { return data_; }

 private:
  SasrecWorkload(const RunConfig& config, SasrecData data, at::Device device);

  WorkloadInfo info_{
      .name = "sasrec", .version = 1, .loss_terms = {{.name = "loss"}}, .best = {.name = "valid_ndcg@10"}};
  SasrecOptions options_;
  double lr_;
  at::Device device_;
  SasrecData data_;
  std::string memory_text_;  // item_memory_text
  std::unique_ptr<SequenceModel> model_;
  std::vector<double> best_;  // best value of each figure in kSavedMetrics; 0 before the first evaluation
};

// PluginWorkload::make of this workload.
WorkloadOrFailure make_sasrec(FileSystem& fs, const RunConfig& config, at::Device device,
                              const OnDataProgress& on_progress);

}  // namespace lockstep
