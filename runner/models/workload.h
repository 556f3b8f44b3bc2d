// Workload: what the training loop needs to know of a model and its data.
//
// Role: the interface between runner/loop and runner/models/*. A workload owns its modules and its data; the loop owns
// order, ranks, gradients, optimizer, schedule and checkpoints.
// Threads: all calls come from the training thread.
// Determinism: everything a workload draws at random is a pure function of (seed, step, slot of the global batch,
// place, element); see base/philox.h. Nothing depends on the rank or the world size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/data/sampler.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// Which samples of which global batch one micro-batch holds.
struct MicroBatchSpec {
  uint64_t seed = 0;
  int64_t step = 0;              // optimizer step, from 0
  int64_t epoch = 0;             // from 0
  int64_t first_slot = 0;        // slot in the global batch of samples[0]; the others follow on
  std::vector<int64_t> samples;  // in [0, num_samples)
};

// A made batch, its tensors on the device. Subclassed by each workload.
class MicroBatch {
 public:
  virtual ~MicroBatch() = default;
  // Denominator of the loss; depends on the batch alone, known on the host without waiting for the device.
  [[nodiscard]] virtual double weight() const = 0;
  [[nodiscard]] virtual int64_t num_samples() const = 0;
};

// (sum, count) of one figure over a shard; sums over ranks give the exact mean.
struct MetricSum {
  std::string name;  // "valid_ndcg@10"
  double sum = 0.0;
  double count = 0.0;
};

struct EvaluationShard {
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 0;
  // To be called several times a second: a rank that is silent for --stall_timeout_seconds is taken for one that hangs.
  // False: the evaluation has been stopped. It returns as soon as it can; what it returns then counts for nothing.
  std::function<bool()> goes_on = [] { return true; };
};

class Workload {
 public:
  virtual ~Workload() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;  // "sasrec"
  [[nodiscard]] virtual int version() const = 0;              // raised when the maths of the workload changes
  // Trainable, in a fixed order, the same on all ranks; leaves, updated in place by the optimizer.
  [[nodiscard]] virtual std::vector<NamedTensor> parameters() const = 0;
  // State that is not trained but belongs to a checkpoint; may be empty.
  [[nodiscard]] virtual std::vector<NamedTensor> buffers() const = 0;
  // Parameters from the seed, the same on every rank.
  virtual void initialize(uint64_t seed) = 0;

  [[nodiscard]] virtual int64_t num_samples() const = 0;  // per epoch
  [[nodiscard]] virtual LastBatch last_batch() const = 0;
  [[nodiscard]] virtual double flops_per_sample() const = 0;  // forward and backward
  // Lines for the start table: label, value ("users", "943").
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> describe() const = 0;

  virtual std::unique_ptr<MicroBatch> make_batch(const MicroBatchSpec& spec) = 0;
  // Scalar fp32 loss summed over the batch (not divided by weight), with a graph to every parameter. Training mode.
  virtual at::Tensor loss_sum(const MicroBatch& batch) = 0;
  // Added once to the normalised loss (weight decay terms of the paper); undefined tensor = none.
  virtual at::Tensor regularization() { return {}; }

  // Figures over this rank's share of the evaluation samples, without gradients, dropout off. The same names in the
  // same order on every rank.
  virtual std::vector<MetricSum> evaluate(const EvaluationShard& shard) = 0;
  // The name of the figure that decides "best", early stop and plateau; larger is better.
  [[nodiscard]] virtual std::string best_metric() const = 0;

  // Called on rank 0 after every evaluation: the guide's own lines (returned, printed by the loop on stdout).
  struct EvaluationReport {
    int64_t epoch = 0;                                    // completed epochs
    double seconds_training = 0.0;                        // since the start, without evaluations
    std::vector<std::pair<std::string, double>> metrics;  // means
  };
  virtual std::vector<std::string> evaluation_lines(const EvaluationReport& report) = 0;
  // log.txt in the guide's form: its first line, and one line per evaluation. Empty: the workload has none.
  [[nodiscard]] virtual std::string log_header() const { return {}; }
  [[nodiscard]] virtual std::string log_line(const EvaluationReport& /*report*/) const { return {}; }
  // The guide's own weight file for this evaluation, or empty when nothing improved; written by the loop as .pth.
  virtual std::string reference_weight_file(const EvaluationReport& report) = 0;

  // What the two functions above remember ("best so far"): kept in state.json, given back on resume. An object.
  // Errors (kCorrupt): a field is missing or of another type.
  [[nodiscard]] virtual Json progress_state() const { return Json::object(); }
  virtual Status restore_progress(const Json& /*state*/) { return {}; }
};

}  // namespace lockstep
