#include "runner/models/protein/mdm_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>

#include "runner/base/check.h"
#include "runner/base/philox.h"
#include "runner/data/sampler.h"
#include "runner/models/guide_files.h"
#include "runner/models/protein/data/fragments.h"
#include "runner/models/protein/data/structure_tensors.h"
#include "runner/models/protein/sample_split.h"
#include "runner/models/protein/sequence_groups.h"

namespace lockstep {
namespace {

constexpr int64_t kBlocks = 3;
constexpr int64_t kBlockLength = 5;
constexpr int64_t kEpochsBetweenFiles = 10;
constexpr std::string_view kEncoderPrefix = "encoder.";
constexpr std::string_view kDecoderPrefix = "decoder.";

// The order of MdmWorkload's loss terms.
enum MdmTerm : size_t { kFragmentTerm, kTorsionTerm };

MdmShape mdm_shape(const ProteinOptions& options) {
  return {.hidden_dim = options.hidden_dim,
          .num_encoder_layers = options.num_encoder_layers,
          .num_decoder_layers = options.num_decoder_layers,
          .num_heads = options.mdm.num_heads,
          .dropout_rate = options.dropout};
}

// The first protein chain of the file; null when there is none.
const ChainView* first_protein(const StructureView& view) {
  const auto found =
      std::find_if(view.chains.begin(), view.chains.end(), [](const ChainView& chain) { return chain.is_protein; });
  return found == view.chains.end() ? nullptr : &*found;
}

// The indices in `view` of the residues that the model uses: standard ones with N, CA, C and O.
std::vector<size_t> residues_of(const StructureView& view) {
  std::vector<size_t> places;
  const ChainView* const chain = first_protein(view);
  if (chain == nullptr) return places;
  constexpr uint8_t kWanted = kInFile | kStandardResidue;
  for (size_t i = chain->begin; i < chain->end; ++i) {
    if ((view.flags[i] & kWanted) == kWanted && is_complete(view.backbone[i])) places.push_back(i);
  }
  return places;
}

// Whether a first torsion angle of these residues is known, or there is none that could be.
bool has_torsions(const StructureView& view, const std::vector<size_t>& residues) {
  bool any_possible = false;
  for (const size_t place : residues) {
    const char letter = kResidueAlphabet[view.types[place]];
    if (letter == 'G' || letter == 'A') continue;
    any_possible = true;
    if (!std::isnan(view.chi1[place])) return true;
  }
  return !any_possible;
}

int64_t tokens_of(const StructureView& view, const std::vector<size_t>& residues) {
  int64_t tokens = 0;
  for (const size_t place : residues) tokens += static_cast<int64_t>(fragments_of(view.types[place]).size());
  return tokens;
}

// The sampler's batches, with `first` added to each sample number.
class BatchesOfRange final : public BatchSource {
 public:
  BatchesOfRange(std::unique_ptr<BatchSource> sampler, int64_t first) : sampler_(std::move(sampler)), first_(first) {}

  [[nodiscard]] int64_t steps(int64_t epoch) override { return sampler_->steps(epoch); }
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override {
    std::vector<int64_t> samples = sampler_->batch(epoch, index);
    for (int64_t& sample : samples) sample += first_;
    return samples;
  }

 private:
  std::unique_ptr<BatchSource> sampler_;
  int64_t first_;
};

NamedTensors with_prefix(const NamedTensors& model, std::string_view prefix) {
  NamedTensors part;
  for (const NamedTensor& tensor : model) {
    if (tensor.name.starts_with(prefix)) part.push_back({tensor.name.substr(prefix.size()), tensor.tensor});
  }
  return part;
}

PickleValue list_of(const std::vector<double>& values) {
  PickleList list;
  for (const double value : values) list.emplace_back().value = value;
  return {std::move(list)};
}

// The least value, NaN left out; infinity when there is none.
double least_of(const std::vector<double>& values) {
  double least = std::numeric_limits<double>::infinity();
  for (const double value : values) least = value < least ? value : least;
  return least;
}

at::Tensor indices(const std::vector<int64_t>& values, bool pinned) {
  return at::tensor(values, at::TensorOptions(at::kLong).pinned_memory(pinned));
}

Result<std::vector<double>> losses_of(const Json& state, const char* name) {
  const auto field = state.find(name);
  const bool is_list =
      field != state.end() && field->is_array() &&
      std::all_of(field->begin(), field->end(), [](const Json& value) { return value.is_number() || value.is_null(); });
  if (!is_list) {
    return Error{ErrorCode::kCorrupt, std::string("workload progress: field ") + name +
                                          " is missing or no list of numbers; the checkpoint is damaged"};
  }
  std::vector<double> losses;
  for (const Json& value : *field) {
    losses.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return losses;
}

// The sum of the rows' cross-entropies, in fp32.
at::Tensor cross_entropy_sum(const at::Tensor& logits_NV, const at::Tensor& targets_N) {
  return at::cross_entropy_loss(logits_NV, targets_N, {}, at::Reduction::Sum);
}

}  // namespace

std::vector<int64_t> masked_tokens(const MdmOptions& options, int64_t tokens, uint64_t seed, int64_t epoch,
                                   int64_t sample) {
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPurpose::kMaskedTokens), static_cast<uint32_t>(epoch),
                            static_cast<uint32_t>(sample)};
  const auto below = [&](int64_t element, int64_t n) {
    return static_cast<int64_t>(stream.below(static_cast<uint64_t>(element), static_cast<uint32_t>(n)));
  };
  std::vector<int64_t> masked;
  if (options.masking_strategy == MaskingStrategy::kBlock) {
    for (int64_t block = 0; block < kBlocks; ++block) {
      const int64_t first = below(block, std::max<int64_t>(1, tokens - kBlockLength + 1));
      for (int64_t i = first; i < std::min(first + kBlockLength, tokens); ++i) masked.push_back(i);
    }
  } else {
    const auto by_ratio = static_cast<int64_t>(std::floor(static_cast<double>(tokens) * options.mask_ratio));
    const int64_t wanted = std::clamp<int64_t>(by_ratio, 1, tokens);
    std::vector<int64_t> order(static_cast<size_t>(tokens));
    std::iota(order.begin(), order.end(), int64_t{0});
    for (int64_t i = 0; i < wanted; ++i) {
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + below(i, tokens - i))]);
      masked.push_back(order[static_cast<size_t>(i)]);
    }
  }
  std::sort(masked.begin(), masked.end());
  masked.erase(std::unique(masked.begin(), masked.end()), masked.end());
  return masked;
}

Result<std::unique_ptr<MdmWorkload>> MdmWorkload::create(const RunConfig& config, StructureCache structures,
                                                         at::Device device, SourceNotes notes) {
  std::unique_ptr<MdmWorkload> workload(new MdmWorkload(config, std::move(structures), device));
  workload->notes_ = std::move(notes);
  TRY(workload->choose_examples(config));
  return workload;
}

MdmWorkload::MdmWorkload(const RunConfig& config, StructureCache structures, at::Device device)
    : info_({.name = "protein",
             .version = 2,
             .loss_terms = {{.name = "fragment"}, {.name = "torsion"}},
             .best = {.name = "valid_loss", .direction = Direction::kLower}}),
      options_(options_of<ProteinOptions>(config)),
      training_(config.training),
      device_(device),
      structures_(std::move(structures)),
      model_(mdm_shape(options_), device) {}

// Splits the structures into training and validation samples: by the data set's own lists where it has any, else at
// random with the run's seed, by groups of similar sequences.
Status MdmWorkload::choose_examples(const RunConfig& config) {
  std::vector<Example> all;
  std::vector<SampleToSplit> to_split;
  std::vector<size_t> unclustered;                  // samples
  std::vector<std::vector<std::string>> sequences;  // of these
  bool has_clusters = false;
  for (int64_t i = 0; i < structures_.size(); ++i) {
    TRY_ASSIGN(const StructureView view, structures_.structure(i));
    const std::vector<size_t> residues = residues_of(view);
    const Example example{
        .structure = i, .residues = static_cast<int64_t>(residues.size()), .tokens = tokens_of(view, residues)};
    if (example.tokens == 0) {
      ++unusable_;
      continue;
    }
    const ChainView& chain = *first_protein(view);
    all.push_back(example);
    further_chains_ +=
        std::count_if(view.chains.begin(), view.chains.end(), [](const ChainView& other) { return other.is_protein; }) -
        1;
    if (!has_torsions(view, residues)) ++without_torsions_;
    const bool is_clustered = chain.cluster >= 0;
    if (!is_clustered) {
      unclustered.push_back(to_split.size());
      sequences.push_back(protein_sequences(view));
    }
    has_clusters = has_clusters || is_clustered;
    to_split.push_back(
        {.listed = is_clustered || options_.use_predefined_split ? std::optional(chain.split) : std::nullopt,
         .cluster = is_clustered ? chain.cluster : -1 - i});
  }
  const std::vector<int64_t> groups = sequence_groups(sequences);
  for (size_t i = 0; i < groups.size(); ++i) to_split[unclustered[i]].cluster = -1 - groups[i];
  TRY(check_torsions(std::ssize(all)));
  const double drawn_fraction = options_.use_predefined_split ? 0.0 : options_.val_split;
  const SampleSplit split = split_samples(to_split, drawn_fraction, config.training.seed);
  if (options_.use_predefined_split && split.validation.empty()) {
    return no_predefined_split(options_.pdb_path, has_clusters);
  }
  for (const int64_t sample : split.train) examples_.push_back(all[static_cast<size_t>(sample)]);
  if (examples_.empty()) {
    return Error{ErrorCode::kInvalid,
                 "no structure is left to train on: " + std::to_string(structures_.size()) + " were read, " +
                     std::to_string(unusable_) +
                     " of them have no side chain of a standard residue with N, CA, C and O in their first chain"};
  }
  num_train_ = static_cast<int64_t>(examples_.size());
  const Relatives relatives = relatives_of(to_split, split);
  std::vector<std::string> names;
  for (const int64_t sample : relatives.validation) {
    TRY_ASSIGN(const StructureView view, structures_.structure(all[static_cast<size_t>(sample)].structure));
    names.emplace_back(view.name);
  }
  held_out_text_ = held_out_text(split, relatives, has_clusters ? relatives.groups : std::ssize(to_split), names);
  for (const int64_t sample : split.validation) examples_.push_back(all[static_cast<size_t>(sample)]);
  return {};
}

// A cache whose torsion_bins fit no structure would train without torsion angles, unnoticed.
Status MdmWorkload::check_torsions(int64_t num_usable) const {
  if (num_usable == 0 || without_torsions_ < num_usable) return {};
  for (const SkippedFile& remark : structures_.remarks()) {
    if (!remark.reason.starts_with(kWrongTorsions)) continue;
    return Error{ErrorCode::kInvalid, "none of the " + std::to_string(num_usable) + " structures in " +
                                          options_.pdb_path + " has a torsion angle that can be learnt, as in " +
                                          remark.file + ": " + remark.reason + "; make the cache again"};
  }
  return {};
}

std::vector<ParameterGroup> MdmWorkload::groups() const {
  return {{.name = "", .parameters = model_.parameters(), .weight_decay = std::nullopt}};
}

double MdmWorkload::flops_per_sample() const {
  double residues = 0.0;
  double tokens = 0.0;
  double pairs = 0.0;  // token-token and token-residue pairs
  for (int64_t i = 0; i < num_train_; ++i) {
    const auto l = static_cast<double>(examples_[static_cast<size_t>(i)].residues);
    const auto m = static_cast<double>(examples_[static_cast<size_t>(i)].tokens);
    residues += l;
    tokens += m;
    pairs += m * (m + l);
  }
  const auto d = static_cast<double>(options_.hidden_dim);
  const auto encoder_layers = static_cast<double>(options_.num_encoder_layers);
  const auto decoder_layers = static_cast<double>(options_.num_decoder_layers);
  constexpr double kEdgeValues = 35.0;
  // Per residue: the products of its messages and its update, and its keys and values in the decoder. Per token:
  // queries, keys, values and outputs of both attentions, and the feed-forward layers. Per pair: query times key, and
  // attention weight times value.
  const double of_residue = encoder_layers * (5.0 * d * d + static_cast<double>(kMdmNeighbours) * kEdgeValues * d) +
                            decoder_layers * 2.0 * d * d;
  const double of_token = decoder_layers * 14.0 * d * d + 2.0 * d * d;
  const double multiply_adds = residues * of_residue + tokens * of_token + decoder_layers * pairs * 2.0 * d;
  constexpr double kFlopsOfOne = 2.0 * 3.0;  // multiply and add, once in the forward and twice in the backward pass
  return kFlopsOfOne * multiply_adds / static_cast<double>(num_train_);
}

std::string MdmWorkload::memory_advice() const {
  return "a smaller --hidden_dim (now " + std::to_string(options_.hidden_dim) + ") takes less" +
         std::string(device_.is_cpu() ? ", and so do fewer ranks on this machine" : "");
}

std::vector<std::pair<std::string, std::string>> MdmWorkload::describe() const {
  const auto text = [](int64_t value) { return std::to_string(value); };
  const NamedTensors& all = model_.parameters();
  const auto num_validation = static_cast<int64_t>(examples_.size()) - num_train_;
  std::array<char, 64> hidden{};
  std::snprintf(hidden.data(), hidden.size(), "%g of the fragments", options_.mdm.mask_ratio);
  const bool is_block = options_.mdm.masking_strategy == MaskingStrategy::kBlock;
  std::vector<std::pair<std::string, std::string>> lines = {
      {"variant", "mdm"},
      {"parameters", text(count_elements(all)) + ": encoder " + text(count_elements(with_prefix(all, kEncoderPrefix))) +
                         ", decoder " + text(count_elements(with_prefix(all, kDecoderPrefix)))},
      {"structures",
       text(structures_.size()) + " from " + options_.pdb_path + count_of_skipped(structures_) +
           (unusable_ > 0 ? ", " + text(unusable_) + " without side chains" : "") +
           (without_torsions_ > 0 ? ", " + text(without_torsions_) + " without torsion angles" : "") +
           (further_chains_ > 0 ? ", the first chain of each (" + text(further_chains_) + " more are not used)" : "")},
      {"trained on", text(num_train_)},
      {"validated on",
       num_validation > 0 ? held_out_text_ : std::string("the same: nothing is held out (--val_split)")},
      {"masked", is_block ? "three runs of five fragments" : hidden.data()}};
  const auto more = lines_on_source(structures_, notes_, training_.verbose);
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

Result<std::unique_ptr<BatchSource>> MdmWorkload::batches(const BatchOptions& options) const {
  const auto num_validation = static_cast<int64_t>(examples_.size()) - num_train_;
  const bool is_held_out = options.split == Split::kValidation && num_validation > 0;
  TRY_ASSIGN(std::unique_ptr<BatchSource> sampler,
             Sampler::create({.seed = options.seed,
                              .num_samples = is_held_out ? num_validation : num_train_,
                              .global_batch = options.global_batch,
                              .last_batch = LastBatch::kShort}));
  return std::unique_ptr<BatchSource>(
      std::make_unique<BatchesOfRange>(std::move(sampler), is_held_out ? num_train_ : 0));
}

Result<HostBatch> MdmWorkload::fetch(const BatchShare& share) const {
  const auto samples = static_cast<int64_t>(share.samples.size());
  int64_t residues = 0;
  int64_t tokens = 0;
  for (const int64_t sample : share.samples) {
    const Example& example = examples_.at(static_cast<size_t>(sample));
    residues = std::max(residues, example.residues);
    tokens = std::max(tokens, example.tokens);
  }
  const bool is_pinned = !device_.is_cpu();
  const auto pinned = [&](at::ScalarType type) { return at::TensorOptions(type).pinned_memory(is_pinned); };
  const at::Tensor X_BL4C = at::zeros({samples, residues, 4, 3}, pinned(at::kFloat));
  const at::Tensor is_residue_BL = at::zeros({samples, residues}, pinned(at::kBool));
  const at::Tensor fragments_BM = at::full({samples, tokens}, int64_t{kFragmentPad}, pinned(at::kLong));
  std::vector<int64_t> masked;
  std::vector<int64_t> kinds;
  std::vector<int64_t> torsions;
  std::vector<int64_t> bins;
  for (int64_t b = 0; b < samples; ++b) {
    const int64_t sample = share.samples[static_cast<size_t>(b)];
    const Example& example = examples_[static_cast<size_t>(sample)];
    TRY_ASSIGN(const StructureView view, structures_.structure(example.structure));
    auto* const coordinates = X_BL4C.mutable_data_ptr<float>() + b * residues * 12;
    auto* const is_residue = is_residue_BL.mutable_data_ptr<bool>() + b * residues;
    auto* const fragments = fragments_BM.mutable_data_ptr<int64_t>() + b * tokens;
    int64_t residue = 0;
    int64_t token = 0;
    for (const size_t place : residues_of(view)) {
      for (int64_t a = 0; a < 4; ++a) {
        std::copy_n(view.backbone[place][static_cast<size_t>(a)].data(), 3, coordinates + residue * 12 + a * 3);
      }
      is_residue[residue++] = true;
      const std::span<const int64_t> of_residue = fragments_of(view.types[place]);
      const int64_t bin = chi1_bin(view.chi1[place]);
      if (bin >= 0 && !of_residue.empty()) {
        torsions.push_back(b * tokens + token);
        bins.push_back(bin);
      }
      for (const int64_t fragment : of_residue) fragments[token++] = fragment;
    }
    for (const int64_t at : masked_tokens(options_.mdm, example.tokens, share.seed, share.epoch, sample)) {
      masked.push_back(b * tokens + at);
      kinds.push_back(fragments[at]);
      fragments[at] = kFragmentMask;
    }
  }
  return HostBatch{.tensors = {{"X_BL4C", X_BL4C},
                               {"is_residue_BL", is_residue_BL},
                               {"fragments_BM", fragments_BM},
                               {"masked_N", indices(masked, is_pinned)},
                               {"kinds_N", indices(kinds, is_pinned)},
                               {"torsions_T", indices(torsions, is_pinned)},
                               {"bins_T", indices(bins, is_pinned)}},
                   .weights = {static_cast<double>(kinds.size()), static_cast<double>(bins.size())}};
}

std::vector<at::Tensor> MdmWorkload::loss(const DeviceBatch& batch) {
  std::optional<DropoutKey> dropout;
  if (batch.is_training) {
    dropout = DropoutKey{
        .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0};
  }
  const MdmLogits logits = model_.logits({.X_BL4C = batch["X_BL4C"],
                                          .is_residue_BL = batch["is_residue_BL"],
                                          .fragments_BM = batch["fragments_BM"],
                                          .masked_N = batch["masked_N"],
                                          .torsions_T = batch["torsions_T"]},
                                         dropout);
  return {cross_entropy_sum(logits.fragments_NV, batch["kinds_N"]), cross_entropy_sum(logits.bins_TV, batch["bins_T"])};
}

EvaluationMetrics MdmWorkload::figures(const std::vector<MetricSum>& totals) const {
  const double fragment = totals[kFragmentTerm].mean();
  const double torsion = totals[kTorsionTerm].mean();
  // As in training, a term without targets (alanines alone have no torsion angles) adds nothing to the loss.
  const double loss = totals[kTorsionTerm].count > 0.0 ? fragment + torsion : fragment;
  return {{"valid_loss", loss}, {"valid_fragment", fragment}, {"valid_torsion", torsion}};
}

std::vector<std::string> MdmWorkload::evaluation_lines(const EvaluationReport& report) {
  const auto line = [&](const char* kind, double loss, double fragment, double torsion) {
    std::array<char, 128> text{};
    std::snprintf(text.data(), text.size(), "Epoch %lld: %s Loss: %.4f (Fragment: %.4f, Torsion: %.4f)",
                  static_cast<long long>(report.epoch), kind, loss, fragment, torsion);
    return std::string(text.data());
  };
  std::vector<std::string> lines;
  const double train_loss = metric_or_nan(report.metrics, kTrainLoss);
  if (!std::isnan(train_loss)) {
    lines.push_back(line("Train", train_loss, metric_or_nan(report.metrics, "train_fragment"),
                         metric_or_nan(report.metrics, "train_torsion")));
  }
  lines.push_back(line("Val", metric_value(report.metrics, "valid_loss"),
                       metric_value(report.metrics, "valid_fragment"), metric_value(report.metrics, "valid_torsion")));
  return lines;
}

std::vector<std::string> MdmWorkload::outputs(const EvaluationReport& report) {
  const double loss = metric_value(report.metrics, "valid_loss");
  const bool is_best = std::isfinite(loss) && std::all_of(val_losses_.begin(), val_losses_.end(), [&](double last) {
                         return !std::isfinite(last) || loss < last;
                       });
  val_losses_.push_back(loss);
  train_losses_.push_back(metric_or_nan(report.metrics, kTrainLoss));
  return guide_files(report, is_best, kEpochsBetweenFiles, "pt");
}

OutputContent MdmWorkload::output(const std::string& /*name*/, const OutputState& state) const {
  TorchTree tree = guide_tree({{"epoch", {state.epoch}}},
                              {{"encoder_state_dict", with_prefix(state.model, kEncoderPrefix)},
                               {"decoder_state_dict", with_prefix(state.model, kDecoderPrefix)}},
                              model_.parameters(), training_, state);
  tree.root.emplace_back("loss", PickleValue{metric_value(state.metrics, "valid_loss")});
  tree.root.emplace_back("train_losses", list_of(train_losses_));
  tree.root.emplace_back("val_losses", list_of(val_losses_));
  if (training_.lr_schedule == LrScheduleKind::kPlateau) {
    const PickleDict scheduler = {{"mode", {std::string("min")}},
                                  {"factor", {training_.plateau_factor}},
                                  {"patience", {training_.plateau_patience}},
                                  {"best", {least_of(val_losses_)}},
                                  {"last_epoch", {state.epoch}},
                                  {"_last_lr", list_of({state.lr})}};
    tree.root.emplace_back("scheduler_state_dict", PickleValue{scheduler});
  }
  return tree;
}

// Losses that are not finite are stored as null.
Json MdmWorkload::progress_state() const {
  const auto list = [](const std::vector<double>& losses) {
    Json json = Json::array();
    for (const double loss : losses) json.push_back(std::isfinite(loss) ? Json(loss) : Json(nullptr));
    return json;
  };
  return Json{{"val_losses", list(val_losses_)}, {"train_losses", list(train_losses_)}};
}

Status MdmWorkload::restore_progress(const Json& state) {
  TRY_ASSIGN(val_losses_, losses_of(state, "val_losses"));
  TRY_ASSIGN(train_losses_, losses_of(state, "train_losses"));
  return {};
}

Result<Workload::TrainingSoFar> MdmWorkload::restore_from_file(const Json& fields) {
  TRY_ASSIGN(const double epochs, figure_in(fields, "epoch"));
  const Status restored = restore_progress(fields);
  if (!restored.ok()) return Error{ErrorCode::kInvalid, "field train_losses or val_losses is missing or no list"};
  return TrainingSoFar{.epochs = static_cast<int64_t>(epochs), .figures = val_losses_};
}

}  // namespace lockstep
