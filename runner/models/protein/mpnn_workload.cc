#include "runner/models/protein/mpnn_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>

#include "runner/base/check.h"
#include "runner/base/philox.h"
#include "runner/data/sampler.h"
#include "runner/models/protein/held_out.h"

namespace lockstep {
namespace {

// The order of MpnnWorkload's loss terms.
enum Term : size_t { kLoss, kNll, kCorrect };

// The published divisor of a step's loss.
constexpr double kPublishedDivisor = 2000.0;

WorkloadInfo info_of(const MpnnOptions& options) {
  const std::optional<double> divisor =
      options.loss_norm == LossNorm::kConstant ? std::optional(kPublishedDivisor) : std::nullopt;
  return {.name = "protein",
          .version = 1,
          .loss_terms = {{.name = "loss", .coefficient = 1.0, .denominator = divisor},
                         {.name = "nll", .coefficient = 0.0},
                         {.name = "recovery", .coefficient = 0.0}},
          .best = {.name = "valid_perplexity", .direction = Direction::kLower}};
}

// Places of the proteins' chains: nucleic acids and the like are no part of the graph.
std::vector<size_t> protein_places(const StructureView& view) {
  std::vector<size_t> places;
  for (const ChainView& chain : view.chains) {
    for (size_t i = chain.begin; chain.is_protein && i < chain.end; ++i) places.push_back(i);
  }
  return places;
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
                                                           at::Device device, const std::string& found) {
  std::unique_ptr<MpnnWorkload> workload(new MpnnWorkload(config, std::move(structures), device));
  workload->found_ = found;
  TRY(workload->choose_examples(config));
  return workload;
}

MpnnWorkload::MpnnWorkload(const RunConfig& config, StructureCache structures, at::Device device)
    : info_(info_of(protein_options(config).mpnn)),
      options_(protein_options(config)),
      device_(device),
      structures_(std::move(structures)),
      model_(mpnn_shape(options_), device) {}

// Who trains and who validates: by the data set's own lists where it has clusters, else by the seed, whole structures.
Status MpnnWorkload::choose_examples(const RunConfig& config) {
  std::vector<PackedSample> unlisted;
  for (int64_t i = 0; i < structures_.size(); ++i) {
    TRY_ASSIGN(const StructureView view, structures_.structure(i));
    const auto length = static_cast<int64_t>(protein_places(view).size());
    if (length > options_.mpnn.max_protein_length) {
      ++too_long_;
      continue;
    }
    bool is_listed = false;
    for (size_t c = 0; c < view.chains.size(); ++c) {
      const ChainView& chain = view.chains[c];
      if (!chain.is_protein || chain.cluster < 0) continue;
      is_listed = true;
      if (chain.split == ChainSplit::kTest) continue;
      const auto sample = static_cast<int64_t>(examples_.size());
      examples_.push_back({.structure = i, .chain = static_cast<int>(c)});
      (chain.split == ChainSplit::kTrain ? train_ : validation_)
          .push_back({.sample = sample, .length = length, .cluster = chain.cluster});
    }
    if (is_listed) continue;
    const auto sample = static_cast<int64_t>(examples_.size());
    examples_.push_back({.structure = i});
    unlisted.push_back({.sample = sample, .length = length, .cluster = -1 - i});
  }
  const auto count = static_cast<int64_t>(unlisted.size());
  const int64_t held_out = held_out_count(options_.val_split, count);
  const std::vector<int64_t> order = epoch_order(config.training.seed, 0, count);
  for (int64_t i = 0; i < count; ++i) {
    (i < held_out ? validation_ : train_).push_back(unlisted[static_cast<size_t>(order[static_cast<size_t>(i)])]);
  }
  if (train_.empty()) {
    return Error{ErrorCode::kInvalid, "no structure is left to train on: " + std::to_string(structures_.size()) +
                                          " were read, " + std::to_string(too_long_) +
                                          " of them are longer than --max_protein_length " +
                                          std::to_string(options_.mpnn.max_protein_length)};
  }
  if (validation_.empty()) validation_ = train_;
  for (std::vector<PackedSample>* const split : {&train_, &validation_}) {
    std::sort(split->begin(), split->end(), [](const PackedSample& a, const PackedSample& b) {
      return std::pair(a.cluster, a.sample) < std::pair(b.cluster, b.sample);
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
  // Products of [D, D] per edge: the edge's part of the first layer and the second; of the edges' own message the
  // third, too. What is done once per residue is little beside it.
  const double encoder = 5.0 * static_cast<double>(options_.num_encoder_layers);
  const double decoder = 2.0 * static_cast<double>(options_.num_decoder_layers);
  const double per_residue = k * (kEdgeFeatures * d + (1.0 + encoder + decoder) * d * d);
  constexpr double kFlopsOfMultiplyAdd = 2.0;
  constexpr double kForwardAndBackward = 3.0;
  return kForwardAndBackward * kFlopsOfMultiplyAdd * per_residue * static_cast<double>(residues_) /
         static_cast<double>(train_.size());
}

std::vector<std::pair<std::string, std::string>> MpnnWorkload::describe() const {
  const auto text = [](int64_t value) { return std::to_string(value); };
  int64_t weights = 0;
  for (const NamedTensor& parameter : model_.parameters()) weights += parameter.tensor.numel();
  const bool holds_out = validation_.front().sample != train_.front().sample || validation_.size() != train_.size();
  const auto skipped = static_cast<int64_t>(structures_.skipped().size());
  std::vector<std::pair<std::string, std::string>> lines = {
      {"variant", "mpnn, " + text(options_.mpnn.num_neighbors) + " neighbours"},
      {"parameters", text(weights)},
      {"structures", text(structures_.size()) + " from " + options_.pdb_path +
                         (skipped > 0 ? ", " + text(skipped) + " files skipped" : "") +
                         (too_long_ > 0 ? ", " + text(too_long_) + " too long" : "")},
      {"trained on", text(static_cast<int64_t>(train_.size())) + " of " + text(residues_) + " residues"},
      {"validated on", holds_out ? text(static_cast<int64_t>(validation_.size()))
                                 : std::string("the same: nothing is held out (--val_split)")}};
  if (!found_.empty()) lines.emplace_back("found", found_);
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(kShown, structures_.skipped().size()); ++i) {
    const SkippedFile& file = structures_.skipped()[i];
    lines.emplace_back("skipped", file.file + ": " + file.reason);
  }
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

// All protein chains have the same chance.
int MpnnWorkload::drawn_chain(const StructureView& view, const Example& example, const BatchShare& share,
                              int64_t sample) const {
  if (example.chain >= 0) return example.chain;
  std::vector<int> proteins;
  for (size_t c = 0; c < view.chains.size(); ++c) {
    if (view.chains[c].is_protein) proteins.push_back(static_cast<int>(c));
  }
  LOCKSTEP_CHECK(!proteins.empty(), "the cache holds structures with a protein");
  const PhiloxStream stream{share.seed, static_cast<uint32_t>(RandomPlace::kHiddenChain),
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
  const auto pinned = [&](at::ScalarType type) { return at::TensorOptions(type).pinned_memory(!device_.is_cpu()); };
  const at::Tensor X_BLAC = at::full({samples, length, 4, 3}, kMissing, pinned(at::kFloat));
  const at::Tensor noise_BLAC = at::zeros({samples, length, 4, 3}, pinned(at::kFloat));
  const at::Tensor normals_BL = at::zeros({samples, length}, at::kFloat);
  const at::Tensor mask_BL = at::zeros({samples, length}, pinned(at::kFloat));
  const at::Tensor chain_M_BL = at::zeros({samples, length}, pinned(at::kFloat));
  const at::Tensor S_BL = at::full({samples, length}, int64_t{kUnknownResidue}, pinned(at::kLong));
  const at::Tensor residue_idx_BL = at::full({samples, length}, int64_t{-kChainGap}, pinned(at::kLong));
  const at::Tensor chain_encoding_BL = at::zeros({samples, length}, pinned(at::kLong));
  double predicted = 0.0;
  for (int64_t b = 0; b < samples; ++b) {
    const StructureView& view = views[static_cast<size_t>(b)];
    const int64_t sample = share.samples[static_cast<size_t>(b)];
    const int hidden = drawn_chain(view, examples_[static_cast<size_t>(sample)], share, sample);
    const uint32_t hidden_group = view.chains[static_cast<size_t>(hidden)].group;
    // Keyed by the sample and not by its slot, so that an evaluation is the same however its batches are packed.
    const SampleKey key{.seed = share.seed, .step = share.epoch, .first_slot = sample};
    const std::vector<size_t>& places = places_of[static_cast<size_t>(b)];
    const auto positions = static_cast<int64_t>(places.size());
    if (options_.mpnn.backbone_noise > 0.0) {
      noise_BLAC[b].narrow(0, 0, positions).copy_(backbone_normals(key, 1, positions)[0]);
    }
    normals_BL[b].narrow(0, 0, positions).copy_(order_normals(key, 1, positions)[0]);
    auto* const coordinates = X_BLAC.data_ptr<float>() + b * length * 12;
    auto* const mask = mask_BL.data_ptr<float>() + b * length;
    auto* const chain_M = chain_M_BL.data_ptr<float>() + b * length;
    auto* const S = S_BL.data_ptr<int64_t>() + b * length;
    auto* const residue_idx = residue_idx_BL.data_ptr<int64_t>() + b * length;
    auto* const chain_encoding = chain_encoding_BL.data_ptr<int64_t>() + b * length;
    for (size_t i = 0; i < places.size(); ++i) {
      const size_t place = places[i];
      const size_t c = view.chain_of[place];
      residue_idx[i] = static_cast<int64_t>(i) + kChainGap * static_cast<int64_t>(c);
      chain_encoding[i] = static_cast<int64_t>(c) + 1;
      const Backbone& backbone = view.backbone[place];
      for (size_t a = 0; a < 4; ++a) std::copy_n(backbone[a].data(), 3, coordinates + i * 12 + a * 3);
      S[i] = view.types[place];
      mask[i] = is_complete(backbone) ? 1.0F : 0.0F;
      chain_M[i] = view.chains[c].group == hidden_group ? 1.0F : 0.0F;
      predicted += mask[i] * chain_M[i];
    }
  }
  const at::Tensor order_BL = decoding_order(normals_BL, mask_BL * chain_M_BL);
  noise_BLAC.mul_(options_.mpnn.backbone_noise);
  return HostBatch{.tensors = {{"X_BL4C", X_BLAC},
                               {"S_BL", S_BL},
                               {"mask_BL", mask_BL},
                               {"chain_M_BL", chain_M_BL},
                               {"residue_idx_BL", residue_idx_BL},
                               {"chain_encoding_BL", chain_encoding_BL},
                               {"noise_BLAC", noise_BLAC},
                               {"order_BL", order_BL}},
                   .weights = {predicted, predicted, predicted}};
}

std::vector<at::Tensor> MpnnWorkload::loss(const DeviceBatch& batch) {
  const MpnnInput input{.X_BL4C = batch["X_BL4C"],
                        .S_BL = batch["S_BL"],
                        .mask_BL = batch["mask_BL"],
                        .chain_M_BL = batch["chain_M_BL"],
                        .residue_idx_BL = batch["residue_idx_BL"],
                        .chain_encoding_BL = batch["chain_encoding_BL"]};
  MpnnDraws draws{.noise_BLAC = {}, .order_BL = batch["order_BL"], .dropout = std::nullopt};
  if (batch.is_training) {
    draws.noise_BLAC = batch["noise_BLAC"];
    draws.dropout = DropoutKey{
        .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0};
  }
  const MpnnSums sums = mpnn_sums(model_.log_probs(input, draws), input.S_BL, input.mask_BL * input.chain_M_BL,
                                  options_.mpnn.label_smoothing);
  return {sums.smoothed_loss, sums.loss, sums.correct};
}

std::vector<std::pair<std::string, double>> MpnnWorkload::figures(const std::vector<MetricSum>& totals) const {
  const auto mean = [&](Term term) { return totals[term].count > 0.0 ? totals[term].sum / totals[term].count : 0.0; };
  return {{"valid_loss", mean(kLoss)}, {"valid_perplexity", std::exp(mean(kNll))}, {"valid_recovery", mean(kCorrect)}};
}

std::vector<std::string> MpnnWorkload::evaluation_lines(const EvaluationReport& report) {
  const auto figure = [&](std::string_view name) {
    const auto found = std::find_if(report.metrics.begin(), report.metrics.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    LOCKSTEP_CHECK(found != report.metrics.end(), "an evaluation report lacks a figure of this workload");
    return found->second;
  };
  std::array<char, 128> line{};
  std::snprintf(line.data(), line.size(), "epoch: %lld, time: %.1f, valid: %.3f, valid_acc: %.3f",
                static_cast<long long>(report.epoch), report.seconds_training, figure("valid_perplexity"),
                figure("valid_recovery"));
  return {line.data()};
}

}  // namespace lockstep
