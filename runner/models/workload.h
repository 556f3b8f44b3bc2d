// Workload: what the training loop needs to know of a model and its data.
//
// Role: the interface between runner/loop and runner/models/*. A workload owns its modules and its data; the loop owns
// order, ranks, gradients, optimizer, schedule and checkpoints.
// Threads: `fetch` comes from any thread, also several at once; all other calls come from the training thread.
// Determinism: everything a workload draws at random is a pure function of (seed, step or epoch, slot of the global
// batch, place, element); see base/philox.h. Nothing depends on the rank or the world size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
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
  double coefficient = 1.0;  // 0: a figure only, nothing is learnt from it
  // The denominator: this constant, or else the term's weights, summed over all ranks. A term without any weight in a
  // step adds nothing to the loss, and has no figure there.
  std::optional<double> denominator;
};

// Which way a figure gets better.
enum class Direction { kHigher, kLower };

// A figure of an evaluation that something is decided by.
struct DecidingFigure {
  std::string name;  // "valid_ndcg@10"
  Direction direction = Direction::kHigher;
};

// What is reported of an evaluation: names and values.
using EvaluationMetrics = std::vector<std::pair<std::string, double>>;

// Of each evaluation, beside the workload's own figures: the mean loss of the steps since the evaluation before it.
// Where there are several terms, also "train_<term>".
inline constexpr const char* kTrainLoss = "train_loss";

// A part of a run in which the same groups of parameters are trained, as long as num_epochs and patience say. Schedule,
// plateau and patience start again with it; the optimizer's moments, the averages and the best figure go on.
struct TrainingPhase {
  std::string name;                      // "adapters"
  int64_t num_epochs = 1;                // at least 1
  std::optional<double> lr;              // instead of --lr
  std::optional<double> clip_grad_norm;  // instead of --clip_grad_norm
  std::vector<std::string> frozen;       // names of groups that stay as they are; not all of them
};

struct WorkloadInfo {
  std::string name;                       // "sasrec"
  int version = 1;                        // raised when the maths of the workload changes
  std::string batch_flag = "batch_size";  // the flag that says how large a batch is, for messages
  std::vector<LossTerm> loss_terms;       // at least one
  DecidingFigure best;                    // decides "best" and early stop
  std::optional<DecidingFigure> plateau;  // decides --lr_schedule plateau; otherwise `best` does
  std::vector<TrainingPhase> phases;      // in their order; none: one phase of --num_epochs, in which all is trained
};

// Weights that are used and never trained: neither sent to other ranks nor written into checkpoints. Each rank has them
// from a file or from the seed; their digest must be the same on all ranks and in the checkpoint that is resumed.
struct FrozenTensors {
  std::string name;    // for people: "GPT-2"
  std::string sha256;  // hex, over all values
};

enum class Split { kTrain, kValidation };

struct BatchOptions {
  Split split = Split::kTrain;
  uint64_t seed = 0;
  int64_t global_batch = 0;  // samples of one optimizer step over all ranks (--batch_size)
};

// Which samples of which global batch one rank takes in one forward.
struct BatchShare {
  uint64_t seed = 0;
  int64_t step = 0;              // optimizer step, from 0
  int64_t epoch = 0;             // from 0
  int64_t phase = 0;             // of WorkloadInfo::phases
  int64_t first_slot = 0;        // slot in the global batch of samples[0]; the others follow on
  std::vector<int64_t> samples;  // as the batch source numbers them

  friend bool operator==(const BatchShare&, const BatchShare&) = default;
};

// A share's data on the host.
struct HostBatch {
  NamedTensors tensors;         // pinned where they go to a device
  std::vector<double> weights;  // one for each loss term
};

// A share's data on the device.
struct DeviceBatch {
  BatchShare share;
  NamedTensors tensors;
  bool is_training = true;  // otherwise nothing is dropped out

  // The tensor of that name; undefined when the batch has none.
  [[nodiscard]] const at::Tensor& operator[](std::string_view name) const;
};

// (sum, count) of one figure over a shard; sums over ranks give the exact mean.
struct MetricSum {
  std::string name;  // "valid_ndcg@10"
  double sum = 0.0;
  double count = 0.0;
};

// This rank's part of an evaluation.
struct EvaluationShard {
  int rank = 0;
  int world_size = 1;
  uint64_t seed = 0;
  // To be called several times a second: a rank that is silent for --stall_timeout_seconds is taken for one that hangs.
  // False: the evaluation has been stopped. It returns as soon as it can; what it returns then counts for nothing.
  std::function<bool()> goes_on = [] { return true; };
  at::Device device = at::Device(at::kCPU);
  int64_t samples_at_once = 1;  // of one forward: as in training
  // Workload::loss in the precision of the run.
  std::function<std::vector<at::Tensor>(const DeviceBatch&)> loss = [](const DeviceBatch&) {
    return std::vector<at::Tensor>();
  };
  // Hands bytes to rank 0, which alone has the run's folder (pictures that were drawn, lists that were made): its call
  // of `output` finds them under `name`, those of all ranks one behind the other in the order of the ranks. Each name
  // is given by every rank, also by one that has no bytes for it. At most kPartBytesMax of one rank's in all.
  std::function<void(const std::string& name, std::string bytes)> give_part = [](const std::string&,
                                                                                 const std::string&) {};
};

// They are held in memory, and travel between ranks in one message.
inline constexpr uint64_t kPartBytesMax = uint64_t{256} << 20;

class Workload {
 public:
  virtual ~Workload() = default;

  [[nodiscard]] virtual const WorkloadInfo& info() const = 0;
  [[nodiscard]] virtual std::vector<ParameterGroup> groups() const = 0;
  // State that is not trained but belongs to a checkpoint; may be empty.
  [[nodiscard]] virtual NamedTensors buffers() const { return {}; }
  [[nodiscard]] virtual std::vector<FrozenTensors> frozen() const { return {}; }
  // Parameters from the seed, the same on every rank.
  virtual void initialize(uint64_t seed) = 0;

  // What the phase's steps and evaluations need is made of the state (a table of encoded texts): a function of
  // parameters that the phase does not train, kept beside the buffers of the phase before until it is whole. Called
  // where there are phases, on every rank, before the first step of each, and again after the state was replaced. To be
  // asked several times a second, like EvaluationShard's: goes_on. False: it returns as soon as it can, and the phase
  // is not entered. Makes no collectives. Errors end the rank (code 3).
  virtual Status enter_phase(int64_t /*phase*/, const std::function<bool()>& /*goes_on*/) { return {}; }

  // What must be the same on all ranks beside the flags: facts about the data by names for people ("number of
  // samples"). An object.
  [[nodiscard]] virtual Json shared_facts() const { return Json::object(); }
  [[nodiscard]] virtual double flops_per_sample() const = 0;  // forward and backward
  // Lines for the start table: label, value ("users", "943").
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> describe() const = 0;

  // Errors (kInvalid): no batch can be made of the split, or not of that size.
  [[nodiscard]] virtual Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const = 0;
  // A share of at least one sample; depends on nothing but the share. Errors end the rank at the step that needs it.
  [[nodiscard]] virtual Result<HostBatch> fetch(const BatchShare& share) const = 0;
  // A share's tensors on the device, begun before the step that takes them while another one is computed: depends on
  // nothing but the batch, and reads no parameter. What it queues goes to a stream for copies. Unless overridden: they
  // are copied as they are.
  [[nodiscard]] virtual NamedTensors upload(const HostBatch& batch, at::Device device) const;
  // One scalar fp32 sum over the batch for each loss term, in their order, with a graph to every parameter that the
  // term trains. Not divided by anything. Training mode.
  [[nodiscard]] virtual std::vector<at::Tensor> loss(const DeviceBatch& batch) = 0;
  // Which flags take less memory, for the message when there was too little: "a smaller --maxlen (now 200) takes less".
  [[nodiscard]] virtual std::string memory_advice() const { return {}; }
  // Added once to the loss of the step (weight decay terms of the paper); undefined tensor = none.
  virtual at::Tensor regularization() { return {}; }

  // Figures over this rank's share of the evaluation samples, without gradients, dropout off. The same names in the
  // same order on every rank. Makes no collectives. Unless overridden: the terms of the loss over the validation split,
  // "valid_<term>".
  virtual Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard);
  // What is reported of the sums over all ranks: their means, unless overridden (a perplexity, a distance). Pure.
  [[nodiscard]] virtual EvaluationMetrics figures(const std::vector<MetricSum>& totals) const;
  // Called on rank 0 after every evaluation: the guide's own lines (returned, printed by the loop on stdout).
  struct EvaluationReport {
    int64_t step = 0;               // committed
    int64_t epoch = 0;              // completed epochs
    double seconds_training = 0.0;  // since the start, without evaluations
    EvaluationMetrics metrics;
  };
  virtual std::vector<std::string> evaluation_lines(const EvaluationReport& report) = 0;
  // log.txt in the guide's form: its first line, and one line per evaluation. Empty: the workload has none.
  [[nodiscard]] virtual std::string log_header() const { return {}; }
  [[nodiscard]] virtual std::string log_line(const EvaluationReport& /*report*/) const { return {}; }
  // The files that this evaluation leaves in the run's folder, by name: the guide's own ("best_model.pt"), or what is
  // shown on the agent's page (output_path). Called on every rank after each evaluation, once.
  virtual std::vector<std::string> outputs(const EvaluationReport& /*report*/) { return {}; }
  // What one of them holds, on rank 0, which writes it while training goes on. A function of the state, so that another
  // rank 0 may write it, and of the evaluation's parts: a file of a part's name is not written when these were lost
  // with their rank 0. Unless overridden: the part of that name, else the parameters and buffers as a state dict.
  struct OutputState {
    int64_t step = 0;
    int64_t epoch = 0;  // completed epochs
    EvaluationMetrics metrics;
    double lr = 0.0;                           // learning rate of the next step
    NamedTensors model;                        // parameters and buffers
    NamedTensors optimizer;                    // as Adam::state
    std::map<std::string, std::string> parts;  // as EvaluationShard::give_part has it; none where they were lost
  };
  [[nodiscard]] virtual OutputContent output(const std::string& name, const OutputState& state) const;

  // What `outputs` remembers ("best so far"): kept in state.json, given back on resume. An object.
  // Errors (kCorrupt): a field is missing or of another type.
  [[nodiscard]] virtual Json progress_state() const { return Json::object(); }
  virtual Status restore_progress(const Json& /*state*/) { return {}; }
  // The tensors of a file of --state_dict_path, by the names of the model's own. Unless overridden: they have them.
  // Error (kInvalid): what cannot be used, and what to do.
  [[nodiscard]] virtual Result<NamedTensors> weights_of_file(NamedTensors file) const { return file; }
  // The same as restore_progress from a file that `output` or the Python that it follows made, which --resume names.
  // `fields`: its numbers and lists of numbers by name. Returns the figures of `best` of the evaluations so far as the
  // file has them, the oldest first, and how many epochs were completed.
  struct FilePast {
    int64_t epochs = 0;
    std::vector<double> figures;
  };
  // Errors (kInvalid): a field is missing or of another type. Unless overridden: the workload makes no such files.
  virtual Result<FilePast> restore_from_file(const Json& fields);
};

// Frozen weights are in no checkpoint. Those of `workload` must be the ones that the checkpoint at `path` was trained
// with. progress: that of its state.json; empty: nothing is known. Error: kInvalid.
Status check_frozen(const Json& progress, const Workload& workload, const std::string& path);
// For restore_from_file. Error: kInvalid.
Result<double> figure_in(const Json& fields, const std::string& name);
// The parameters of all groups, in their order.
NamedTensors parameters_of(const Workload& workload);
// The figure of this name in an evaluation's report. It must be there.
double metric_value(const EvaluationMetrics& metrics, std::string_view name);
bool has_metric(const EvaluationMetrics& metrics, std::string_view name);

}  // namespace lockstep
