#include "runner/models/protein/mpnn_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/philox.h"
#include "runner/models/guide_files.h"
#include "runner/models/prepare_options.h"
#include "runner/models/protein/data/prepare_structures.h"
#include "runner/models/protein/mdm_workload.h"
#include "runner/models/protein/mpnn_input.h"
#include "runner/models/protein/sample_split.h"
#include "runner/models/protein/sequence_groups.h"

namespace lockstep {
namespace {

// The order of MpnnWorkload's loss terms.
enum Term : size_t { kLoss, kNll, kCorrect };

constexpr char kHeldOutFile[] = "held_out.txt";

// The published divisor of a step's loss.
constexpr double kPublishedDivisor = 2000.0;

WorkloadInfo info_of(const MpnnOptions& options) {
  const std::optional<double> divisor =
      options.loss_norm == LossNorm::kConstant ? std::optional(kPublishedDivisor) : std::nullopt;
  return {.name = "protein",
          .version = 2,
          .batch_flag = "batch_tokens",
          .loss_terms = {{.name = "loss", .coefficient = 1.0, .denominator = divisor},
                         {.name = "nll", .coefficient = 0.0},
                         {.name = "recovery", .coefficient = 0.0}},
          .best = {.name = "valid_perplexity", .direction = Direction::kLower}};
}

// The chain's id without the number of its copy in the assembly, which training_set.cc adds: "A-2" → "A", if the
// structure has such a chain.
std::string_view id_of_original(const StructureView& view, const ChainView& chain) {
  const size_t dash = chain.id.rfind('-');
  if (dash == std::string_view::npos) return chain.id;
  const std::string_view id = chain.id.substr(0, dash);
  const bool is_there = std::any_of(view.chains.begin(), view.chains.end(), [&](const ChainView& other) {
    return other.id == id && other.cluster == chain.cluster && other.group == chain.group;
  });
  return is_there ? id : chain.id;
}

bool is_copy(const StructureView& view, size_t chain) {
  return id_of_original(view, view.chains[chain]) != view.chains[chain].id;
}

// The chain in list.csv: the entry is the structure's name up to its assembly ("1abc-2") or chain ("1abc_A").
std::string listed_chain(const StructureView& view, const ChainView& chain) {
  const size_t end = view.name.find_last_of("-_");
  return std::string(view.name.substr(0, end)) + "_" + std::string(id_of_original(view, chain));
}

}  // namespace

MpnnShape mpnn_shape(const ProteinOptions& options) {
  return {.hidden_dim = options.hidden_dim,
          .num_encoder_layers = options.num_encoder_layers,
          .num_decoder_layers = options.num_decoder_layers,
          .num_neighbours = options.mpnn.num_neighbors,
          .dropout_rate = options.dropout};
}

Result<std::unique_ptr<MpnnWorkload>> MpnnWorkload::create(const RunConfig& config, StructureCache structures,
                                                           at::Device device, SourceNotes notes) {
  std::unique_ptr<MpnnWorkload> workload(new MpnnWorkload(config, std::move(structures), device));
  workload->notes_ = std::move(notes);
  TRY(workload->choose_examples(config));
  return workload;
}

MpnnWorkload::MpnnWorkload(const RunConfig& config, StructureCache structures, at::Device device)
    : info_(info_of(options_of<ProteinOptions>(config).mpnn)),
      options_(options_of<ProteinOptions>(config)),
      training_(config.training),
      device_(device),
      structures_(std::move(structures)),
      model_(mpnn_shape(options_), device) {}

// Splits the samples into training and validation: by the data set's own lists where it has any, else at random with
// the run's seed, by whole clusters where there are any, else by groups of structures with similar sequences.
Status MpnnWorkload::choose_examples(const RunConfig& config) {
  std::vector<PackedSample> all;  // by sample
  std::vector<SampleToSplit> to_split;
  std::map<std::pair<int64_t, std::string>, int64_t> members;  // by cluster and chain of the list
  std::vector<int64_t> unclustered;                            // samples
  std::vector<std::vector<std::string>> sequences;             // of these
  const auto add = [&](const Example& example, const PackedSample& packed, std::optional<ChainSplit> listed) {
    all.push_back(packed);
    all.back().sample = static_cast<int64_t>(examples_.size());
    examples_.push_back(example);
    to_split.push_back({.listed = listed, .cluster = packed.cluster});
  };
  bool has_clusters = false;
  for (int64_t i = 0; i < structures_.size(); ++i) {
    TRY_ASSIGN(const StructureView view, structures_.structure(i));
    const auto length = static_cast<int64_t>(protein_places(view).size());
    if (length > options_.mpnn.max_protein_length) {
      ++too_long_;
      continue;
    }
    bool is_clustered = false;
    for (size_t c = 0; c < view.chains.size(); ++c) {
      const ChainView& chain = view.chains[c];
      if (!chain.is_protein || chain.cluster < 0) continue;
      is_clustered = true;
      // The copies of a chain in an assembly are predicted together, whichever of them is chosen.
      if (is_copy(view, c)) continue;
      const auto number = static_cast<int64_t>(members.size());
      const auto member = members.emplace(std::pair(chain.cluster, listed_chain(view, chain)), number).first;
      add({.structure = i, .chain = static_cast<int>(c)},
          {.sample = 0, .length = length, .cluster = chain.cluster, .member = member->second}, chain.split);
    }
    has_clusters = has_clusters || is_clustered;
    if (is_clustered) continue;
    std::optional<ChainSplit> listed;
    if (options_.use_predefined_split) listed = view.chains.front().split;
    unclustered.push_back(static_cast<int64_t>(examples_.size()));
    sequences.push_back(protein_sequences(view));
    add({.structure = i}, {.sample = 0, .length = length, .cluster = -1 - i}, listed);
  }
  // An epoch takes all of these; only the split treats those with similar sequences as one.
  const std::vector<int64_t> groups = sequence_groups(sequences);
  for (size_t i = 0; i < groups.size(); ++i) to_split[static_cast<size_t>(unclustered[i])].cluster = -1 - groups[i];
  const double drawn_fraction = options_.use_predefined_split ? 0.0 : options_.val_split;
  const SampleSplit split = split_samples(to_split, drawn_fraction, config.training.seed);
  if (options_.use_predefined_split && split.validation.empty()) {
    return no_predefined_split(options_.pdb_path, has_clusters);
  }
  for (const int64_t sample : split.train) {
    train_.push_back(all[static_cast<size_t>(sample)]);
    examples_[static_cast<size_t>(sample)].is_trained_on = true;
  }
  for (const int64_t sample : split.validation) validation_.push_back(all[static_cast<size_t>(sample)]);
  if (train_.empty()) {
    return Error{ErrorCode::kInvalid, "no structure is left to train on: " + std::to_string(structures_.size()) +
                                          " were read, " + std::to_string(too_long_) +
                                          " of them are longer than --max_protein_length " +
                                          std::to_string(options_.mpnn.max_protein_length)};
  }
  holds_out_ = !validation_.empty();
  if (holds_out_) {
    const Relatives relatives = relatives_of(to_split, split);
    std::vector<std::string> names;
    for (const int64_t sample : relatives.validation) {
      const auto view = structures_.structure(examples_[static_cast<size_t>(sample)].structure);
      if (view.ok()) names.emplace_back(view->name);
    }
    held_out_text_ = held_out_text(split, relatives, has_clusters ? relatives.groups : std::ssize(to_split), names);
  }
  if (!holds_out_) validation_ = train_;
  std::set<int64_t> trained_members;
  for (const PackedSample& sample : train_) {
    if (sample.cluster >= 0) trained_members.insert(sample.member);
  }
  num_chains_ = std::ssize(trained_members);
  for (std::vector<PackedSample>* const split : {&train_, &validation_}) {
    std::sort(split->begin(), split->end(), [](const PackedSample& a, const PackedSample& b) {
      return std::tuple(a.cluster, a.member, a.sample) < std::tuple(b.cluster, b.member, b.sample);
    });
  }
  for (const PackedSample& sample : train_) residues_ += sample.length;
  return {};
}

std::vector<ParameterGroup> MpnnWorkload::groups() const {
  return {{.name = "", .parameters = model_.parameters(), .weight_decay = std::nullopt}};
}

double MpnnWorkload::flops_per_sample() const {
  const auto d = static_cast<double>(options_.hidden_dim);
  const auto k = static_cast<double>(options_.mpnn.num_neighbors);
  constexpr double kEdgeFeatures = 416.0;
  // The products with [D, D] matrices per edge: the edge's part of the first layer, and the second layer; for the
  // message that updates the edge, also the third. Products per residue are few in comparison and left out.
  const double encoder = 5.0 * static_cast<double>(options_.num_encoder_layers);
  const double decoder = 2.0 * static_cast<double>(options_.num_decoder_layers);
  const double per_residue = k * (kEdgeFeatures * d + (1.0 + encoder + decoder) * d * d);
  constexpr double kFlopsOfMultiplyAdd = 2.0;
  constexpr double kForwardAndBackward = 3.0;
  return kForwardAndBackward * kFlopsOfMultiplyAdd * per_residue * static_cast<double>(residues_) /
         static_cast<double>(train_.size());
}

std::string MpnnWorkload::memory_advice() const {
  return "a structure that is longer than --batch_tokens is a batch by itself, so a smaller --max_protein_length "
         "(now " +
         std::to_string(options_.mpnn.max_protein_length) + ") takes less, and so do fewer --num_neighbors (now " +
         std::to_string(options_.mpnn.num_neighbors) + ")";
}

std::vector<std::pair<std::string, std::string>> MpnnWorkload::describe() const {
  const auto text = [](int64_t value) { return std::to_string(value); };
  std::vector<std::pair<std::string, std::string>> lines = {
      {"variant", "mpnn, " + text(options_.mpnn.num_neighbors) + " neighbours"},
      {"parameters", text(count_elements(model_.parameters()))},
      {"structures", text(structures_.size()) + " from " + options_.pdb_path + count_of_skipped(structures_) +
                         (too_long_ > 0 ? ", " + text(too_long_) + " too long" : "")},
      {"trained on", text(static_cast<int64_t>(train_.size())) + " of " + text(residues_) + " residues" +
                         (num_chains_ > 0 ? ": " + text(num_chains_) + " listed chains in their assemblies" : "")},
      {"validated on", holds_out_ ? held_out_text_ : std::string("the same: nothing is held out (--val_split)")}};
  const auto more = lines_on_source(structures_, notes_, training_.verbose);
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

Result<std::unique_ptr<BatchSource>> MpnnWorkload::batches(const BatchOptions& options) const {
  const bool is_training = options.split == Split::kTrain;
  return std::unique_ptr<BatchSource>(std::make_unique<TokenBatches>(
      TokenBatchOptions{
          .seed = options.seed,
          .tokens_max = options.global_batch,
          .samples_max = is_training ? options_.mpnn.num_examples_per_epoch : static_cast<int64_t>(validation_.size())},
      is_training ? train_ : validation_));
}

// The sample's chain, or else one of the protein chains, each with the same probability.
int MpnnWorkload::drawn_chain(const StructureView& view, const Example& example, const BatchShare& share,
                              int64_t sample) const {
  if (example.chain >= 0) return example.chain;
  std::vector<int> proteins;
  for (size_t c = 0; c < view.chains.size(); ++c) {
    if (view.chains[c].is_protein) proteins.push_back(static_cast<int>(c));
  }
  LOCKSTEP_CHECK(!proteins.empty(), "the cache holds structures with a protein");
  const PhiloxStream stream{share.seed, static_cast<uint32_t>(RandomPurpose::kHiddenChain),
                            static_cast<uint32_t>(share.epoch), static_cast<uint32_t>(sample)};
  return proteins[stream.below(0, static_cast<uint32_t>(proteins.size()))];
}

Result<HostBatch> MpnnWorkload::fetch(const BatchShare& share) const {
  const auto samples = static_cast<int64_t>(share.samples.size());
  std::vector<StructureView> views;
  std::vector<std::vector<size_t>> places_of;  // by sample
  int64_t length = 1;
  for (const int64_t sample : share.samples) {
    TRY_ASSIGN(StructureView view, structures_.structure(examples_.at(static_cast<size_t>(sample)).structure));
    length = std::max(length, static_cast<int64_t>(places_of.emplace_back(protein_places(view)).size()));
    views.push_back(std::move(view));
  }
  const bool is_pinned = !device_.is_cpu();
  const MpnnInput input = padding_of(samples, length, is_pinned);
  const at::Tensor noise_BL4C =
      at::zeros({samples, length, 4, 3}, at::TensorOptions(at::kFloat).pinned_memory(is_pinned));
  const at::Tensor normals_BL = at::zeros({samples, length}, at::kFloat);
  double predicted = 0.0;
  for (int64_t b = 0; b < samples; ++b) {
    const StructureView& view = views[static_cast<size_t>(b)];
    const int64_t sample = share.samples[static_cast<size_t>(b)];
    const Example& example = examples_[static_cast<size_t>(sample)];
    const int hidden = drawn_chain(view, example, share, sample);
    const uint32_t hidden_group = view.chains[static_cast<size_t>(hidden)].group;
    // Keyed by the sample and not by its slot, so that an evaluation is the same however its batches are packed.
    const SampleKey key{.seed = share.seed, .step = share.epoch, .first_slot = sample};
    const std::vector<size_t>& places = places_of[static_cast<size_t>(b)];
    const auto positions = static_cast<int64_t>(places.size());
    if (options_.mpnn.backbone_noise > 0.0 && example.is_trained_on) {
      noise_BL4C[b].narrow(0, 0, positions).copy_(backbone_normals(key, 1, positions)[0]);
    }
    normals_BL[b].narrow(0, 0, positions).copy_(order_normals(key, 1, positions)[0]);
    put_structure(view, places, b, input);
    const auto* const mask = input.mask_BL.const_data_ptr<float>() + b * length;
    auto* const chain_M = input.chain_M_BL.mutable_data_ptr<float>() + b * length;
    for (size_t i = 0; i < places.size(); ++i) {
      chain_M[i] = view.chains[view.chain_of[places[i]]].group == hidden_group ? 1.0F : 0.0F;
      predicted += mask[i] * chain_M[i];
    }
  }
  const at::Tensor order_BL = decoding_order(normals_BL, input.mask_BL * input.chain_M_BL);
  noise_BL4C.mul_(options_.mpnn.backbone_noise);
  return HostBatch{.tensors = {{"X_BL4C", input.X_BL4C},
                               {"S_BL", input.S_BL},
                               {"mask_BL", input.mask_BL},
                               {"chain_M_BL", input.chain_M_BL},
                               {"residue_idx_BL", input.residue_idx_BL},
                               {"chain_encoding_BL", input.chain_encoding_BL},
                               {"noise_BL4C", noise_BL4C},
                               {"order_BL", is_pinned ? order_BL.pin_memory() : order_BL}},
                   .weights = {predicted, predicted, predicted}};
}

std::vector<at::Tensor> MpnnWorkload::loss(const DeviceBatch& batch) {
  const MpnnInput input{.X_BL4C = batch["X_BL4C"],
                        .S_BL = batch["S_BL"],
                        .mask_BL = batch["mask_BL"],
                        .chain_M_BL = batch["chain_M_BL"],
                        .residue_idx_BL = batch["residue_idx_BL"],
                        .chain_encoding_BL = batch["chain_encoding_BL"]};
  MpnnDraws draws{.noise_BL4C = {}, .order_BL = batch["order_BL"], .dropout = std::nullopt};
  if (batch.is_training) {
    draws.noise_BL4C = batch["noise_BL4C"];
    draws.dropout = DropoutKey{
        .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0};
  }
  const MpnnSums sums = mpnn_sums(model_.log_probs(input, draws), input.S_BL, input.mask_BL * input.chain_M_BL,
                                  options_.mpnn.label_smoothing);
  return {sums.smoothed_loss, sums.loss, sums.correct};
}

EvaluationMetrics MpnnWorkload::figures(const std::vector<MetricSum>& totals) const {
  return {{"valid_loss", totals[kLoss].mean()},
          {"valid_perplexity", std::exp(totals[kNll].mean())},
          {"valid_recovery", totals[kCorrect].mean()}};
}

std::vector<std::string> MpnnWorkload::evaluation_lines(const EvaluationReport& report) {
  std::array<char, 128> line{};
  std::snprintf(line.data(), line.size(), "epoch: %lld, time: %.1f, valid: %.3f, valid_acc: %.3f",
                static_cast<long long>(report.epoch), report.seconds_training,
                metric_value(report.metrics, "valid_perplexity"), metric_value(report.metrics, "valid_recovery"));
  return {line.data()};
}

std::vector<std::string> MpnnWorkload::outputs(const EvaluationReport& /*report*/) {
  std::vector<std::string> files = {"epoch_last.pt"};
  if (holds_out_) files.emplace_back(kHeldOutFile);
  return files;
}

// The names of the structures that are validated on, one per line.
std::string MpnnWorkload::held_out_names() const {
  std::set<std::string> names;
  for (const PackedSample& sample : validation_) {
    const auto view = structures_.structure(examples_[static_cast<size_t>(sample.sample)].structure);
    if (view.ok()) names.emplace(view->name);
  }
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

OutputContent MpnnWorkload::output(const std::string& name, const OutputState& state) const {
  if (name == kHeldOutFile) return held_out_names();
  return guide_tree({{"epoch", {state.epoch}},
                     {"step", {state.step}},
                     {"num_edges", {options_.mpnn.num_neighbors}},
                     {"noise_level", {options_.mpnn.backbone_noise}}},
                    {{"model_state_dict", state.model}}, model_.parameters(), training_, state);
}

Result<Workload::TrainingSoFar> MpnnWorkload::restore_from_file(const Json& fields) {
  TRY_ASSIGN(const double epochs, figure_in(fields, "epoch"));
  return TrainingSoFar{.epochs = static_cast<int64_t>(epochs), .figures = {}};
}

WorkloadOrFailure make_protein(FileSystem& fs, const RunConfig& config, at::Device device,
                               const OnDataProgress& on_progress) {
  const ProteinOptions& options = options_of<ProteinOptions>(config);
  PrepareOptions prepare = prepare_options(on_progress);
  // --cache_dir alone would choose the other model.
  if (options.variant == ProteinVariant::kMpnn) prepare.cache_flags += " --variant mpnn";
  Result<PreparedStructures> prepared =
      prepare_structures(fs, options.pdb_path, cache_folder(options.cache_dir, options.pdb_path), prepare,
                         options.use_predefined_split ? SplitLists::kUsed : SplitLists::kIgnored);
  if (!prepared.ok()) return data_failure(prepared.error().message);
  SourceNotes notes{.found = prepared->summary, .remarks = prepared->remarks};
  if (options.variant == ProteinVariant::kMdm) {
    return workload_or_failure(MdmWorkload::create(config, std::move(prepared->cache), device, std::move(notes)));
  }
  return workload_or_failure(MpnnWorkload::create(config, std::move(prepared->cache), device, std::move(notes)));
}

}  // namespace lockstep
