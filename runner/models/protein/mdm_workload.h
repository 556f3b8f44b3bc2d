// MdmWorkload: the guide's masked side-chain model as a Workload.
//
// Role: joins structures, network and loss. A sample is a structure: the complete standard residues of its first
// protein chain, and the fragments of their side chains. Which fragments are masked is drawn anew in each epoch.
// Ownership: owns the parameters and the structures.
// Threads: as Workload.
// Shapes: B samples, L residues (padded), M fragment tokens (padded); see mdm_model.h.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/run_config.h"
#include "runner/models/protein/data/structure_cache.h"
#include "runner/models/protein/mdm_model.h"
#include "runner/models/protein/protein_flags.h"
#include "runner/models/protein/sample_split.h"
#include "runner/models/workload.h"

namespace lockstep {

// The places of the masked ones among `tokens` fragment tokens (at least 1), ascending; the draw depends only on
// (seed, epoch, sample). kRandom: ⌊tokens · ratio⌋ of them, at least one. kBlock: three runs of five, which may
// overlap.
std::vector<int64_t> masked_tokens(const MdmOptions& options, int64_t tokens, uint64_t seed, int64_t epoch,
                                   int64_t sample);

class MdmWorkload final : public Workload {
 public:
  // `notes`: for the start table.
  // Errors: kInvalid: no structure to train on, or --use_predefined_split finds none to validate on. kCorrupt: the
  // cache is damaged.
  static Result<std::unique_ptr<MdmWorkload>> create(const RunConfig& config, StructureCache structures,
                                                     at::Device device, SourceNotes notes = {});

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override;
  void initialize(uint64_t seed) override { model_.initialize(seed); }

  [[nodiscard]] Json shared_facts() const override { return {{"sha256 of the structures", structures_.digest()}}; }
  [[nodiscard]] double flops_per_sample() const override;
  [[nodiscard]] std::string memory_advice() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override;

  // The batch size counts structures.
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override;
  // The tensors are those of MdmInput under their names, and the targets kinds_N and bins_T. The weights are N and T.
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override;
  // The sums of the cross-entropies of the masked fragments' kinds, and of the bins of the first torsion angles.
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override;

  // valid_fragment and valid_torsion, the mean losses, and valid_loss, their sum, which decides which checkpoint is
  // best. A mean over nothing is NaN; valid_loss is then the fragments' alone, or NaN when nothing was masked.
  [[nodiscard]] EvaluationMetrics figures(const std::vector<MetricSum>& totals) const override;
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override;
  // The guide's files: best_model.pt when the validation loss has improved, checkpoint_epoch_N.pt in every tenth epoch.
  std::vector<std::string> outputs(const EvaluationReport& report) override;
  // Both files hold the same fields: the state dicts of encoder and decoder without their prefixes, and the optimizer's
  // as torch.optim.AdamW has it, with the parameters' names instead of numbers.
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override;
  [[nodiscard]] Json progress_state() const override;
  Status restore_progress(const Json& state) override;
  Result<TrainingSoFar> restore_from_file(const Json& fields) override;

 private:
  // One sample: the number of its structure, and its sizes.
  struct Example {
    int64_t structure = 0;
    int64_t residues = 0;
    int64_t tokens = 0;
  };

  MdmWorkload(const RunConfig& config, StructureCache structures, at::Device device);
  Status choose_examples(const RunConfig& config);
  [[nodiscard]] Status check_torsions(int64_t num_usable) const;

  WorkloadInfo info_;
  ProteinOptions options_;
  TrainingOptions training_;
  at::Device device_;
  StructureCache structures_;
  SourceNotes notes_;
  MdmModel model_;
  std::vector<Example> examples_;
  int64_t num_train_ = 0;  // the first ones in examples_; validated on, too, when no others follow
  std::string held_out_text_;
  int64_t further_chains_ = 0;        // proteins after the first of their structure, which are not used
  int64_t without_torsions_ = 0;      // structures with side chains, none of whose first torsion angles is known
  int64_t unusable_ = 0;              // structures without any side chain of a complete standard residue
  std::vector<double> val_losses_;    // one per evaluation so far
  std::vector<double> train_losses_;  // one per evaluation: mean over the steps since the evaluation before
};

}  // namespace lockstep
