// A small generated data set and a small model of it.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>

#include "runner/data/synthetic.h"
#include "runner/models/sasrec/sasrec_workload.h"

namespace lockstep {

inline Dataset dataset_from(const std::string& text) {
  Result<Dataset> dataset = parse_interactions(text, "test data", {.min_count = 0});
  EXPECT_TRUE(dataset.ok()) << (dataset.ok() ? "" : dataset.error().message);
  return std::move(dataset).value();
}

inline Dataset small_dataset() {
  return dataset_from(
      synthetic_ratings({.seed = 3, .users = 210, .items = 150, .events_min = 5, .events_max = 30, .follow = 0.7}));
}

inline RunConfig small_config() {
  RunConfig config;
  config.workload = "sasrec";
  config.options =
      SasrecOptions{.maxlen = 12, .hidden_units = 16, .num_blocks = 2, .num_heads = 2, .dropout_rate = 0.2};
  return config;
}

inline RunConfig with_form(RunConfig config, SasrecForm form) {
  options_of<SasrecOptions>(config).norm_first = form == SasrecForm::kPreNorm;
  options_of<SasrecOptions>(config).original = form == SasrecForm::kOriginal;
  return config;
}

inline std::unique_ptr<SasrecWorkload> make_small(const RunConfig& config) {
  Result<std::unique_ptr<SasrecWorkload>> workload =
      SasrecWorkload::create(config, small_dataset(), at::Device(at::kCPU));
  EXPECT_TRUE(workload.ok()) << (workload.ok() ? "" : workload.error().message);
  (*workload)->initialize(7);
  return std::move(workload).value();
}

inline BatchShare batch_spec(int64_t first_slot, int64_t count) {
  BatchShare spec{.seed = 11, .step = 5, .epoch = 0, .first_slot = first_slot, .samples = {}};
  for (int64_t i = 0; i < count; ++i) spec.samples.push_back((first_slot + i) * 3 % 200);
  return spec;
}

// The batch of a share, on the CPU, and its weight.
struct WeighedBatch {
  DeviceBatch batch;
  double weight = 0.0;
};
inline WeighedBatch batch_of(const SasrecWorkload& workload, const BatchShare& share) {
  Result<HostBatch> fetched = workload.fetch(share);
  EXPECT_TRUE(fetched.ok()) << (fetched.ok() ? "" : fetched.error().message);
  return {{.share = share, .tensors = workload.upload(*fetched, at::kCPU)}, fetched->weights.at(0)};
}

inline std::vector<MetricSum> evaluate(Workload& workload, const EvaluationShard& shard) {
  Result<std::vector<MetricSum>> sums = workload.evaluate(shard);
  EXPECT_TRUE(sums.ok()) << (sums.ok() ? "" : sums.error().message);
  return std::move(sums).value();
}

inline at::Tensor loss_of(SasrecWorkload& workload, const BatchShare& share) {
  return workload.loss(batch_of(workload, share).batch).at(0);
}

}  // namespace lockstep
