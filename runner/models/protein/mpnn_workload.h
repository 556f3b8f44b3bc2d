// MpnnWorkload: ProteinMPNN as a Workload.
//
// Role: joins structures, network and loss. A sample is a structure and, in a training set with clusters, one of the
// listed chains, once for each assembly that has it; without clusters, a chain is drawn anew in each epoch. The amino
// acids of that chain, and of all chains with nearly the same sequence, are to be predicted. Ownership: owns the
// parameters and the structures. Threads: as Workload. Shapes: B samples, L residues (padded), C = 3 coordinates.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/mpnn_model.h"
#include "runner/models/protein/protein_flags.h"
#include "runner/models/protein/sample_split.h"
#include "runner/models/protein/token_batches.h"
#include "runner/models/registry.h"
#include "runner/models/workload.h"

namespace lockstep {

MpnnShape mpnn_shape(const ProteinOptions& options);

class MpnnWorkload final : public Workload {
 public:
  // `notes`: for the start table.
  // Errors (kInvalid): no structure to train on, or --use_predefined_split finds none to validate on.
  static Result<std::unique_ptr<MpnnWorkload>> create(const RunConfig& config, StructureCache structures,
                                                      at::Device device, SourceNotes notes = {});

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  void initialize(uint64_t seed) override { model_.initialize(seed); }

  [[nodiscard]] Json shared_facts() const override { return {{"sha256 of the structures", structures_.digest()}}; }
  [[nodiscard]] double flops_per_sample() const override;
  [[nodiscard]] std::string memory_advice() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  // The batch size counts residues, including padding.
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override;
  // The tensors of MpnnInput and MpnnDraws under their names. All weights are the number of predicted residues.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // Three sums: the cross-entropy with smoothed labels, which is trained on; the negative log-likelihood; the number of
  // correct predictions.
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;

  // Loss, perplexity and recovery (the share of correct predictions); NaN when no residue was predicted.
  [[nodiscard]] EvaluationMetrics figures(const std::vector<MetricSum>& totals) const override;
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  // epoch_last.pt, which the public implementation can load: weights, num_edges, noise_level and the optimizer's state.
  // held_out.txt: the names of the structures that are validated on and not trained on, if there are any.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override;
  Result<TrainingSoFar> restore_from_file(const Json& fields) override;

  [[nodiscard]] const MpnnModel& model() const { return model_; }

 private:
  struct Example {
    int64_t structure = 0;
    int chain = -1;  // the chain whose amino acids are predicted; -1: one is drawn in each epoch
    bool is_trained_on = false;
  };

  MpnnWorkload(const RunConfig& config, StructureCache structures, at::Device device);
  Status choose_examples(const RunConfig& config);
  [[nodiscard]] std::string held_out_names() const;
  [[nodiscard]] int drawn_chain(const StructureView& view, const Example& example, const BatchShare& share,
                                int64_t sample) const;

  WorkloadInfo info_;
  ProteinOptions options_;
  TrainingOptions training_;
  at::Device device_;
  StructureCache structures_;
  SourceNotes notes_;
  MpnnModel model_;
  std::vector<Example> examples_;  // by sample
  std::vector<PackedSample> train_;
  std::vector<PackedSample> validation_;  // a copy of train_ where nothing is held out
  bool holds_out_ = false;
  std::string held_out_text_;
  int64_t num_chains_ = 0;  // listed chains that are trained on; 0 without clusters
  int64_t too_long_ = 0;    // structures left out because of --max_protein_length
  int64_t residues_ = 0;    // residues of all training samples
};

// PluginWorkload::make of this workload: with --variant mdm it makes an MdmWorkload.
WorkloadOrFailure make_protein(FileSystem& fs, const RunConfig& config, at::Device device,
                               const OnDataProgress& on_progress);

}  // namespace lockstep
