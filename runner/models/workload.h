// Workload: what the training loop needs to know of a model and its data.
//
// Role: the interface between runner/loop and runner/models/*. A workload owns its modules and its data; the loop owns
// the order of steps, ranks, gradients, optimizer, schedule and checkpoints.
// Threads: `fetch` comes from any thread, also several at once; all other calls come from the training thread.
// Determinism: everything a workload draws at random is a pure function of (seed, step or epoch, slot of the global
// batch, purpose, element); see base/philox.h. Nothing depends on the rank or the world size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/checkpoint/weights.h"
#include "runner/data/batch_source.h"
#include "runner/tensor/named_tensor.h"
#include "runner/tensor/parameter_group.h"

namespace lockstep {

// One of the sums that make up the loss: Σ over the terms of coefficient * Σ over all ranks / denominator.
struct LossTerm {
  std::string name;
  double coefficient = 1.0;  // 0: the term is reported, but contributes no gradient
  // The denominator: this constant, or else the sum of the term's weights (HostBatch::weights) over all ranks. A term
  // whose weights are all 0 in a step adds nothing to that step's loss and is not reported for it.
  std::optional<double> denominator;
};

// Whether a higher or a lower value is better.
enum class Direction { kHigher, kLower };

// A figure of an evaluation that decides something: the best checkpoint, early stopping, or the plateau schedule.
struct DecidingFigure {
  std::string name;  // "valid_ndcg@10"
  Direction direction = Direction::kHigher;
};

// The figures that an evaluation reports: names and values.
using EvaluationMetrics = std::vector<std::pair<std::string, double>>;

// The loop adds this figure to every evaluation: the mean loss of the training steps since the evaluation before it.
// With several loss terms it also adds "train_<term>" for each.
inline constexpr const char* kTrainLoss = "train_loss";

// A part of a run that trains the same groups of parameters throughout. It ends after num_epochs, or earlier when
// --early_stop_patience is used up. Learning-rate schedule, plateau and patience start afresh in each phase; the
// optimizer's moments, the EMA and the best figure carry over.
struct TrainingPhase {
  std::string name;                      // "adapters"
  int64_t num_epochs = 1;                // at least 1
  std::string epochs_flag;               // the flag that sets num_epochs, for messages; empty: there is none
  std::optional<double> lr;              // instead of --lr
  std::optional<double> clip_grad_norm;  // instead of --clip_grad_norm
  std::vector<std::string> frozen;       // names of the groups that are not trained; at least one group must be left
};

struct WorkloadInfo {
  std::string name;                       // "sasrec"; of a plugin the flags' name is used
  int version = 1;                        // raised when the maths changes: a run does not go on with another's state
  std::string batch_flag = "batch_size";  // the flag that sets the batch size, for messages
  std::vector<LossTerm> loss_terms;       // at least one
  DecidingFigure best;                    // decides "best" and early stop
  std::optional<DecidingFigure> plateau;  // decides --lr_schedule plateau; otherwise `best` does
  std::vector<TrainingPhase> phases;      // in order; empty: one phase of --num_epochs that trains all parameters
};

// Weights, tables or data that are used and never trained. They are neither sent to other ranks nor written into
// checkpoints: each rank reads them from a file or makes them from the seed. Their digest must be the same on all ranks
// and in the checkpoint that is resumed.
struct FrozenInput {
  std::string name;    // for messages: "GPT-2"
  std::string sha256;  // hex, over all values
};

enum class Split { kTrain, kValidation };

struct BatchOptions {
  Split split = Split::kTrain;
  uint64_t seed = 0;
  int64_t global_batch = 0;  // samples of one optimizer step over all ranks (--batch_size)
};

// The samples of one global batch that one rank computes in one forward: one micro-batch.
struct BatchShare {
  Split split = Split::kTrain;  // what the batch is for
  uint64_t seed = 0;
  int64_t step = 0;              // optimizer step, from 0
  int64_t epoch = 0;             // from 0
  int64_t phase = 0;             // index into WorkloadInfo::phases
  int64_t first_slot = 0;        // place of samples[0] in the global batch; samples[i] is at first_slot + i
  std::vector<int64_t> samples;  // sample numbers, as BatchSource::batch returns them

  friend bool operator==(const BatchShare&, const BatchShare&) = default;
};

// A share's data on the host.
struct HostBatch {
  NamedTensors tensors;         // in pinned memory when they will be copied to a GPU
  std::vector<double> weights;  // one for each loss term
};

// A share's data on the device.
struct DeviceBatch {
  BatchShare share;
  NamedTensors tensors;
  bool is_training = true;  // false: dropout is off

  // The tensor of that name. Throws std::out_of_range when the batch has none.
  [[nodiscard]] const at::Tensor& operator[](std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;
};

// (sum, count) of one figure over a shard; sums over ranks give the exact mean.
struct MetricSum {
  std::string name;  // "valid_ndcg@10"
  double sum = 0.0;
  double count = 0.0;

  // NaN of nothing: as a figure it is never the best one, as 0 would be for a loss.
  [[nodiscard]] double mean() const { return count > 0.0 ? sum / count : std::numeric_limits<double>::quiet_NaN(); }
};

class Workload;

// This rank's part of an evaluation.
struct EvaluationShard {
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 0;
  int64_t phase = 0;  // the phase that the run is in: index into WorkloadInfo::phases
  // evaluate() must call this several times a second: a rank that is silent for --stall_timeout_seconds is taken to be
  // hung. It returns false when the evaluation is to stop; evaluate() then returns as soon as it can, and its result is
  // discarded.
  std::function<bool()> goes_on = [] { return true; };
  at::Device device = at::Device(at::kCPU);
  int64_t samples_at_once = 1;  // at most in one forward; they fit in memory, because training uses as many
  // The workload that supplies the data of the default evaluate(): this one if null. For a plugin it is the wrapper
  // that checks each batch.
  const Workload* data = nullptr;
  // Workload::loss in the precision of the run.
  std::function<std::vector<at::Tensor>(const DeviceBatch&)> loss = [](const DeviceBatch&) {
    return std::vector<at::Tensor>();
  };
  // Sends bytes (sampled pictures, lists) to rank 0, the only rank that writes into the run's folder. Rank 0's call of
  // Workload::output finds them in OutputState::parts[name]: the bytes of all ranks concatenated in the order of the
  // ranks. Every rank must give every name, with an empty string when it has nothing for it. A rank may give at most
  // kPartBytesMax bytes over all names.
  std::function<void(const std::string& name, std::string bytes)> give_part = [](const std::string&,
                                                                                 const std::string&) {};
};

// A rank's parts are held in host memory and sent in one message.
inline constexpr uint64_t kPartBytesMax = uint64_t{256} << 20;

// Workload::progress_state goes to a new rank as one message, in which it takes twice its size (hex), and the agents
// accept messages of 16 MiB.
inline constexpr size_t kProgressStateBytesMax = size_t{4} << 20;

class Workload {
 public:
  virtual ~Workload() = default;

  [[nodiscard]] virtual const WorkloadInfo& info() const = 0;
  [[nodiscard]] virtual std::vector<ParameterGroup> groups() const = 0;
  // State that is not trained but belongs to a checkpoint; may be empty. Only `outputs` may change it, because there
  // all ranks have the same figures. `loss` must not: it sees the share of one rank, and a step that is cut is redone.
  [[nodiscard]] virtual NamedTensors buffers() const { return {}; }
  [[nodiscard]] virtual std::vector<FrozenInput> frozen() const { return {}; }
  // Parameters from the seed, the same on every rank.
  virtual void initialize(uint64_t seed) = 0;

  // Prepares what the phase's steps and evaluations need, for example a table of encoded texts. The result must depend
  // only on parameters that the phase does not train, and must replace the result of the phase before it only when it
  // is complete. Called on every rank of a workload with phases, before the first step of each phase and again after
  // the state was replaced. It must call goes_on several times a second, like evaluate(); when that returns false, it
  // returns as soon as it can, and the phase is not entered. Makes no collectives. Errors end the rank (exit code 3).
  virtual Status enter_phase(int64_t /*phase*/, const std::function<bool()>& /*goes_on*/) { return {}; }

  // Facts about the data that must be the same on all ranks, like the flags: a JSON object whose keys are readable
  // names ("number of samples").
  [[nodiscard]] virtual Json shared_facts() const { return Json::object(); }
  [[nodiscard]] virtual double flops_per_sample() const = 0;  // FLOPs of forward and backward
  // Lines for the start table: label, value ("users", "943").
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> describe() const = 0;

  // Different samples need different numbers, also in different splits.
  // Errors (kInvalid): no batch can be made of the split, or not of that size.
  [[nodiscard]] virtual Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const = 0;
  // Reads the samples of `share`, which has at least one. The result depends on nothing but the share. An error ends
  // the rank at the step that needs the batch.
  [[nodiscard]] virtual Result<HostBatch> fetch(const BatchShare& share) const = 0;
  // Queues the copy of a batch to the device. Called before the step that needs the batch; what it queues runs on a
  // stream for copies while the micro-batch before it is computed. The result depends on nothing but the batch: it must
  // not read parameters. Unless overridden: copies the tensors as they are.
  [[nodiscard]] virtual NamedTensors upload(const HostBatch& batch, at::Device device) const;
  // For each loss term, in the order of WorkloadInfo::loss_terms, one fp32 scalar: the sum over the batch, not divided
  // by anything. Its autograd graph must reach every parameter that the term trains.
  [[nodiscard]] virtual std::vector<at::Tensor> loss(const DeviceBatch& batch) = 0;
  // Names flags that reduce memory, for the message after an out-of-memory error: "a smaller --maxlen (now 200) takes
  // less".
  [[nodiscard]] virtual std::string memory_advice() const { return {}; }
  // Added once to the loss of the step (weight decay terms of the paper); undefined tensor = none.
  virtual at::Tensor regularization() { return {}; }

  // Figures over this rank's share of the evaluation samples, without gradients and with dropout off. Every rank must
  // return the same names in the same order. Makes no collectives. Unless overridden: the loss terms over the
  // validation split, named "valid_<term>".
  virtual Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard);
  // Turns the sums over all ranks into the figures that are reported. Unless overridden: the mean of each, NaN where
  // the count is 0; a figure that is NaN is never the best. Override it for a perplexity or a distance. Pure.
  [[nodiscard]] virtual EvaluationMetrics figures(const std::vector<MetricSum>& totals) const;
  // Called on rank 0 after every evaluation. Returns lines in the guide's format, which the loop prints on stdout.
  struct EvaluationReport {
    int64_t step = 0;               // committed
    int64_t epoch = 0;              // completed epochs
    bool ends_epoch = true;         // false: made at the run's end, in the middle of the next epoch
    double seconds_training = 0.0;  // since the start, without evaluations
    EvaluationMetrics metrics;
  };
  virtual std::vector<std::string> evaluation_lines(const EvaluationReport& report) = 0;
  // log.txt in the guide's format: its header, and one line per evaluation. Empty: the workload writes no log.txt.
  [[nodiscard]] virtual std::string log_header() const { return {}; }
  [[nodiscard]] virtual std::string log_line(const EvaluationReport& /*report*/) const { return {}; }
  // Names of the files that are to be written into the run's folder after this evaluation: the guide's own
  // ("best_model.pt"), or files that the agent's page shows (output_path). Called once on every rank per evaluation.
  virtual std::vector<std::string> outputs(const EvaluationReport& /*report*/) { return {}; }
  // The content of one of these files. Rank 0 calls it and writes the file while training goes on. The result must
  // depend only on `state`, so that a new rank 0 can write the file after the old one was lost. If rank 0 ended since
  // give_part(), its parts are gone, and files made of them are left out. Unless overridden: the part of that name if
  // there is one, else parameters and buffers as a state dict.
  struct OutputState {
    int64_t step = 0;
    int64_t epoch = 0;  // completed epochs
    EvaluationMetrics metrics;
    double lr = 0.0;                           // learning rate of the next step
    NamedTensors model;                        // parameters and buffers
    NamedTensors optimizer;                    // as Adam::state
    std::map<std::string, std::string> parts;  // by the names given to give_part; empty when they were lost
  };
  // An empty text: the file is left out, because the parts that it needs were lost with a former rank 0.
  [[nodiscard]] virtual OutputContent output(const std::string& name, const OutputState& state) const;

  // What `outputs` remembers, for example the best figure so far: a JSON object that is saved in state.json and passed
  // to restore_progress on resume. Errors (kCorrupt): a field is missing or has the wrong type. At most
  // kProgressStateBytesMax as text, or the run is refused: arrays belong into buffers.
  [[nodiscard]] virtual Json progress_state() const { return Json::object(); }
  virtual Status restore_progress(const Json& /*state*/) { return {}; }
  // Renames the tensors of a --state_dict_path or --resume file to the names of this model, and drops those that it
  // does not need. Unless overridden: the file has the model's own names. Error (kInvalid): what cannot be used, and
  // what to do.
  [[nodiscard]] virtual Result<NamedTensors> weights_of_file(NamedTensors file) const { return file; }
  // Like restore_progress, for a training file that --resume names: one that `output`, or the Python program it
  // imitates, has written. `fields`: the file's numbers and lists of numbers, by name. Returns how many epochs were
  // completed and the value of WorkloadInfo::best at each evaluation so far, oldest first, as far as the file has them.
  struct TrainingSoFar {
    int64_t epochs = 0;
    std::vector<double> figures;
  };
  // Errors (kInvalid): a field is missing or has the wrong type. Unless overridden: kInvalid, there are no such files.
  virtual Result<TrainingSoFar> restore_from_file(const Json& fields);
};

// Frozen inputs are not in checkpoints. Checks that those of `workload` have the digests that the checkpoint at `path`
// was trained with. progress: "progress" of its state.json; an input without a digest there passes. Error: kInvalid.
Status check_frozen(const Json& progress, const Workload& workload, const std::string& path);
// One number of a training file, for restore_from_file. Error (kInvalid): it is missing or not a number.
Result<double> figure_in(const Json& fields, const std::string& name);
// The parameters of all groups, in their order.
NamedTensors parameters_of(const Workload& workload);
// The figure of this name. Throws std::out_of_range when there is none.
double metric_value(const EvaluationMetrics& metrics, std::string_view name);
bool has_metric(const EvaluationMetrics& metrics, std::string_view name);
// The figure of this name; NaN when there is none.
double metric_or_nan(const EvaluationMetrics& metrics, std::string_view name);

}  // namespace lockstep
