// Gpt2recWorkload: the recommender with GPT-2 as a Workload.
//
// Role: joins ratings, texts, GPT-2, the trained layers and the evaluations. A sample is a training rating and its
// negative, a film that the user has not rated in training.
// In a cached phase all texts are encoded once, and LoRA's weights are not trained. In any other phase the distinct
// texts of each batch are encoded, with an autograd graph to LoRA's weights.
// Ownership: owns the parameters, the frozen GPT-2 and the data. Threads: as Workload.
// Shapes: B samples, U users, I films, T texts, W width of a text's vector; see recommender_model.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/gpt2rec/data/movielens.h"
#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/gpt2rec/recommender_data.h"
#include "runner/models/gpt2rec/recommender_model.h"
#include "runner/models/gpt2rec/text_encoder.h"
#include "runner/models/gpt2rec/text_table.h"
#include "runner/models/registry.h"
#include "runner/models/workload.h"

namespace lockstep {

TextEncoderOptions text_encoder_options(const Gpt2recOptions& options);

class Gpt2recWorkload final : public Workload {
 public:
  // Errors (kInvalid): see RecommenderData::create.
  static Result<std::unique_ptr<Gpt2recWorkload>> create(const RunConfig& config, const RatingData& ratings,
                                                         std::unique_ptr<TextEncoder> encoder, at::Device device);

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  // "heads", and, if any phase trains LoRA, "adapters".
  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  [[nodiscard]] Result<NamedTensors> weights_of_file(NamedTensors file) const override;
  // GPT-2, the tokenizer and the ratings: with other ratings the split would be another one, and a run that goes on
  // would be tested on ratings that it was trained on.
  [[nodiscard]] std::vector<FrozenInput> frozen() const override { return frozen_; }
  void initialize(uint64_t seed) override;
  // Encodes all texts for a cached phase.
  Status enter_phase(int64_t phase, const std::function<bool()>& goes_on) override;

  [[nodiscard]] Json shared_facts() const override;
  [[nodiscard]] double flops_per_sample() const override;
  [[nodiscard]] std::string memory_advice() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override;
  // The tensors (int64): "users_U" and "films_I", the ids of the batch's distinct users and films, so that each is
  // computed once; "user_rows_B" and "film_rows_BM", the places in these lists of each sample's user, and of its rated
  // film and its N = --num_negatives negatives (flat, M = 1 + N); "user_texts_U" and "film_texts_I", the rows of their
  // texts among the cached vectors or, in a phase that is not cached, among the batch's own texts. These are then
  // there, too, as TextTable::tensors of the groups "0", "1", … The weight is the number of samples.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // BPR (Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", 2009): -log σ(rated -
  // negative), of the scores of the two films. Of several negatives each counts by the softmax of their scores, through
  // which no gradient goes (Sun et al., "RotatE", 2019, equations 5 and 6).
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;

  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override;
  // Without test_cold_ndcg@10 where no film is cold.
  [[nodiscard]] EvaluationMetrics figures(const std::vector<MetricSum>& totals) const override;
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  // Whenever valid_ndcg@10 has improved: test_results_standard.json, --model_path, and, if a phase trains LoRA, a
  // folder with LoRA's weights for Python's peft.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override;
  [[nodiscard]] Json progress_state() const override;
  Status restore_progress(const Json& state) override;

  [[nodiscard]] const RecommenderModel& model() const { return model_; }
  [[nodiscard]] const RecommenderData& data() const { return data_; }
  [[nodiscard]] const TextEncoder& encoder() const { return *encoder_; }
  // The vectors of all texts, [T, W], without an autograd graph. Undefined if goes_on returned false.
  [[nodiscard]] at::Tensor encode_all(const std::function<bool()>& goes_on) const;
  // The row of each user's text among these vectors, by user id, on the device.
  [[nodiscard]] const at::Tensor& user_texts() const { return user_texts_U_; }
  // The parts of the first layer of all films: [I, H].
  [[nodiscard]] at::Tensor film_terms(const at::Tensor& texts_TW) const;

 private:
  Gpt2recWorkload(const RunConfig& config, const RatingData& ratings, RecommenderData data,
                  std::unique_ptr<TextEncoder> encoder, at::Device device);

  WorkloadInfo info_;
  Gpt2recOptions options_;
  std::vector<RecommenderPhase> phases_;
  int64_t phase_ = 0;  // the one that was entered last
  uint64_t seed_;
  at::Device device_;
  std::string data_text_;
  std::vector<std::pair<std::string, std::string>> data_notes_;
  RecommenderData data_;
  std::unique_ptr<TextEncoder> encoder_;
  std::vector<FrozenInput> frozen_;
  TextTable texts_;
  at::Tensor user_texts_U_;
  at::Tensor film_texts_I_;
  RecommenderModel model_;
  at::Tensor cached_TW_;  // in a cached phase; else undefined
  double best_ = -1.0;    // of valid_ndcg@10; -1 before the first evaluation
};

// PluginWorkload::make of this workload.
WorkloadOrFailure make_gpt2rec(FileSystem& fs, const RunConfig& config, at::Device device,
                               const OnDataProgress& on_progress);

}  // namespace lockstep
