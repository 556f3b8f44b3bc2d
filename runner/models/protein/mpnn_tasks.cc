#include "runner/models/protein/mpnn_tasks.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/json.h"
#include "runner/checkpoint/reader.h"
#include "runner/data/structures/prepare_structures.h"
#include "runner/models/protein/mpnn_helper_files.h"
#include "runner/models/protein/mpnn_input.h"
#include "runner/models/protein/mpnn_model.h"
#include "runner/models/protein/mpnn_positions.h"
#include "runner/models/protein/mpnn_sampling.h"
#include "runner/models/protein/mpnn_task_flags.h"
#include "runner/models/protein/mpnn_workload.h"
#include "runner/models/protein/protein_flags.h"

namespace lockstep {
namespace {

// Sequences of one structure that are designed or scored at once: as many as keep the largest tensor below a quarter of
// a GiB.
constexpr int64_t kFloatsMax = int64_t{1} << 26;

// Of `wanted` sequences of `length` residues.
int64_t sequences_at_once(const MpnnShape& shape, int64_t length, int64_t wanted) {
  return std::clamp<int64_t>(kFloatsMax / (length * shape.num_neighbours * shape.hidden_dim), 1, wanted);
}

using Clock = std::chrono::steady_clock;

Failure usage(std::string message) { return {ExitCode::kUsage, std::move(message)}; }

std::string with_digits(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string seconds_since(Clock::time_point began) {
  return with_digits(std::chrono::duration<double>(Clock::now() - began).count(), 2) + " s";
}

// "1 sequence", "3 sequences"
std::string counted(int64_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

// Four digits, as the public script prints scores. A score of nothing is no number.
OrderedJson rounded(double value) {
  return std::isfinite(value) ? OrderedJson(std::stod(with_digits(value, 4))) : OrderedJson(nullptr);
}

// One structure, as the model takes it, and what of it is to be designed.
struct Target {
  StructureView view;
  MpnnInput input;  // B = 1
  std::vector<size_t> designed_chains;
  std::vector<size_t> fixed_chains;
  std::vector<int64_t> place_of;  // position in view → place in the tensors; -1: not in them
  std::vector<std::vector<int64_t>> tied;
  HelperChoices chosen;  // of the helper files

  // 1 where an amino acid is predicted: [1, L].
  [[nodiscard]] at::Tensor designed_BL() const { return input.chain_M_BL * input.mask_BL; }
};

std::vector<std::string> ids_of(const StructureView& view, std::vector<size_t> chains) {
  std::vector<std::string> ids;
  for (const size_t chain : chains) ids.emplace_back(view.chains[chain].id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The proteins of the structure, in the order of the file.
Target make_target(const StructureView& view) {
  Target target{
      .view = view, .input = {}, .designed_chains = {}, .fixed_chains = {}, .place_of = {}, .tied = {}, .chosen = {}};
  target.place_of.assign(view.size(), -1);
  const std::vector<size_t> places = protein_places(view);
  for (size_t i = 0; i < places.size(); ++i) target.place_of[places[i]] = static_cast<int64_t>(i);
  target.input = padding_of(1, static_cast<int64_t>(places.size()), /*pinned=*/false);
  put_structure(view, places, 0, target.input);
  return target;
}

// Reads --design_chains, --fixed_positions and --tied_positions against the structure.
Status choose_places(const MpnnTaskOptions& options, Target& target) {
  const StructureView& view = target.view;
  const auto of_flag = [](const std::string& flag, const Error& error) {
    return Error{error.code, "--" + flag + ": " + error.message};
  };
  auto chains = chains_of(view, options.design_chains);
  if (!chains.ok()) return of_flag("design_chains", chains.error());
  target.designed_chains = target.chosen.designed_chains.value_or(*chains);
  auto* const chain_M = target.input.chain_M_BL.mutable_data_ptr<float>();
  for (size_t c = 0; c < view.chains.size(); ++c) {
    const bool is_designed =
        std::find(target.designed_chains.begin(), target.designed_chains.end(), c) != target.designed_chains.end();
    if (!is_designed && view.chains[c].is_protein) target.fixed_chains.push_back(c);
    for (uint32_t i = view.chains[c].begin; is_designed && i < view.chains[c].end; ++i) {
      chain_M[target.place_of[i]] = 1.0F;
    }
  }
  const auto fixed = positions_of(view, options.fixed_positions);
  if (!fixed.ok()) return of_flag("fixed_positions", fixed.error());
  for (const std::vector<int64_t>& some : {*fixed, target.chosen.fixed}) {
    for (const int64_t position : some) chain_M[target.place_of[static_cast<size_t>(position)]] = 0.0F;
  }

  auto tied = tied_positions_of(view, options.tied_positions);
  if (!tied.ok()) return of_flag("tied_positions", tied.error());
  if (!tied->empty() && !target.chosen.tied.empty()) {
    return Error{ErrorCode::kInvalid, "--tied_positions and --tied_positions_jsonl are both given: give one of them"};
  }
  if (tied->empty()) *tied = target.chosen.tied;
  const auto designed = target.designed_BL();
  const auto* const is_designed = designed.const_data_ptr<float>();
  if (designed.sum().item<double>() == 0.0) {
    return Error{ErrorCode::kInvalid,
                 std::string(view.name) +
                     ": no residue is left: those of the chosen chains are fixed (--fixed_positions) or "
                     "lack one of N, CA, C and O"};
  }
  for (const std::vector<int64_t>& group : *tied) {
    std::vector<int64_t> places;
    for (const int64_t position : group) {
      const auto at = static_cast<size_t>(position);
      const int64_t place = target.place_of[at];
      if (is_designed[place] == 0.0F) {
        return Error{ErrorCode::kInvalid,
                     "--tied_positions: residue " + std::to_string(view.numbers[at]) + " of chain " +
                         std::string(view.chains[view.chain_of[at]].id) + " of " + std::string(view.name) +
                         " is not designed: its chain or position is fixed, or its coordinates are not all there"};
      }
      places.push_back(place);
    }
    target.tied.push_back(std::move(places));
  }
  return {};
}

MpnnInput on_device(const MpnnInput& input, at::Device device) {
  return {.X_BL4C = input.X_BL4C.to(device),
          .S_BL = input.S_BL.to(device),
          .mask_BL = input.mask_BL.to(device),
          .chain_M_BL = input.chain_M_BL.to(device),
          .residue_idx_BL = input.residue_idx_BL.to(device),
          .chain_encoding_BL = input.chain_encoding_BL.to(device)};
}

// A structure whose backbone is encoded.
struct EncodedTarget {
  Target target;
  MpnnInput input;  // on the device
  MpnnEncoding encoding;
  at::Tensor designed_BL;
};

// Log-probabilities of sequences [N, L, A], and their two scores.
struct Scored {
  at::Tensor log_probs_NLA;
  std::vector<double> score;         // over the designed places
  std::vector<double> global_score;  // over all
};

std::vector<double> to_vector(const at::Tensor& values_N) {
  const at::Tensor values = values_N.to(at::kCPU, at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

Scored score_sequences(const MpnnModel& model, const EncodedTarget& encoded, const at::Tensor& S_NL,
                       const at::Tensor& order_NL) {
  const at::Tensor log_probs_NLA = model.decode(encoded.encoding, S_NL, order_NL);
  return {.log_probs_NLA = log_probs_NLA,
          .score = to_vector(mean_negative_log_prob(log_probs_NLA, S_NL, encoded.designed_BL)),
          .global_score = to_vector(mean_negative_log_prob(log_probs_NLA, S_NL, encoded.input.mask_BL))};
}

at::Tensor draw_order(const EncodedTarget& encoded, const SampleKey& key, int64_t number) {
  const at::Tensor normals_NL = order_normals(key, number, encoded.input.S_BL.size(1)).to(encoded.input.S_BL.device());
  return decoding_order(normals_NL, encoded.designed_BL);
}

// What all tasks do for each structure of --pdb_path.
class MpnnTask {
 public:
  explicit MpnnTask(const TaskInput& input)
      : input_(input),
        options_(mpnn_task_options(input.config)),
        model_(mpnn_shape(protein_options(input.config)), input.device) {}
  virtual ~MpnnTask() = default;

  std::optional<Failure> run() {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& tensor : input_.weights) {
      if (tensor.tensor.is_floating_point() && !at::isfinite(tensor.tensor).all().item<bool>()) {
        return Failure{ExitCode::kCheckpoint, input_.weights_path + ": \"" + tensor.name +
                                                  "\" holds numbers that are not finite; give an earlier checkpoint"};
      }
    }
    const Status copied = copy_tensors(input_.weights, model_.parameters(), input_.weights_path);
    if (!copied.ok()) return usage(copied.error().message);

    PosixFileSystem fs;
    const Result<HelperFiles> files = HelperFiles::read(fs, options_);
    if (!files.ok()) return usage(files.error().message);
    bias_ = files->bias();
    const Status ready = read_inputs(fs);
    if (!ready.ok()) return usage(ready.error().message);
    const std::string& path = protein_options(input_.config).pdb_path;
    const auto prepared = prepare_structures(fs, path, /*cache_folder=*/"", reading());
    if (!prepared.ok()) return Failure{ExitCode::kData, prepared.error().message};
    const StructureCache& cache = prepared->cache;
    for (const SkippedFile& skipped : cache.skipped()) input_.log("skipped " + skipped.file + ": " + skipped.reason);
    std::vector<std::string> wanted;
    if (!options_.only.empty()) {
      constexpr int64_t kNamesBytesMax = int64_t{1} << 26;
      const Result<std::string> names = read_file(fs, options_.only, kNamesBytesMax);
      if (!names.ok()) return usage("--only " + options_.only + ": " + names.error().message);
      std::istringstream lines(*names);
      for (std::string name; std::getline(lines, name);) wanted.push_back(name);
    }
    int64_t taken = 0;
    for (int64_t i = 0; i < cache.size(); ++i) {
      const auto began = Clock::now();
      const auto view = cache.structure(i);
      if (!view.ok()) return Failure{ExitCode::kData, view.error().message};
      if (!options_.only.empty() && std::find(wanted.begin(), wanted.end(), view->name) == wanted.end()) continue;
      ++taken;
      Target target = make_target(*view);
      Result<HelperChoices> of_files = files->choices(*view);
      if (!of_files.ok()) return usage(of_files.error().message);
      target.chosen = std::move(*of_files);
      const Status chosen = choose_places(options_, target);
      if (!chosen.ok()) return usage(chosen.error().message);
      const MpnnInput input = on_device(target.input, input_.device);
      const EncodedTarget encoded{.target = std::move(target),
                                  .input = input,
                                  .encoding = model_.encode(input),
                                  .designed_BL = input.chain_M_BL * input.mask_BL};
      std::string remark;
      const Status done = work(encoded, remark);
      if (!done.ok()) {
        const bool is_usage = done.error().code == ErrorCode::kInvalid;
        return Failure{is_usage ? ExitCode::kUsage : ExitCode::kCheckpoint, done.error().message};
      }
      input_.log(std::string(view->name) + ": " + remark + " in " + seconds_since(began) + " (" +
                 std::to_string(i + 1) + " of " + std::to_string(cache.size()) + ")");
    }
    if (taken == 0) return usage("--only " + options_.only + " names no structure of " + path);
    if (const std::string remark = last_remark(); !remark.empty()) input_.log(remark);
    return std::nullopt;
  }

 protected:
  // Before the first structure. Errors: usage.
  virtual Status read_inputs(FileSystem& /*fs*/) { return {}; }
  // For a person, when all structures are done; empty: nothing.
  [[nodiscard]] virtual std::string last_remark() const { return {}; }
  // Writes the result for one structure. remark: what was done, for a person. Errors: kInvalid is usage.
  virtual Status work(const EncodedTarget& encoded, std::string& remark) = 0;

  Status write(const std::string& text) const { return input_.out(text.data(), text.size()); }
  [[nodiscard]] const MpnnTaskOptions& options() const { return options_; }
  [[nodiscard]] const MpnnModel& model() const { return model_; }
  [[nodiscard]] const AminoAcidValues& bias_of_files() const { return bias_; }
  // Random numbers of sequence (or order) `first` and those behind it.
  [[nodiscard]] SampleKey key_of(int64_t first, int64_t temperature = 0) const {
    return {.seed = options_.seed, .step = temperature, .first_slot = first};
  }

 private:
  // A large folder says every few seconds how far it is.
  [[nodiscard]] PrepareOptions reading() const {
    static constexpr auto kInterval = std::chrono::seconds(3);
    return {.progress = [this, said_at = Clock::now()](int64_t done, int64_t total) mutable {
      if (Clock::now() - said_at < kInterval) return true;
      said_at = Clock::now();
      input_.log("read " + std::to_string(done) + " of " + std::to_string(total) + " structures");
      return true;
    }};
  }

  const TaskInput& input_;
  const MpnnTaskOptions& options_;
  MpnnModel model_;
  AminoAcidValues bias_{};
};

// The designed chains in the order of their names.
std::vector<size_t> by_name(const Target& target) {
  std::vector<size_t> chains = target.designed_chains;
  std::sort(chains.begin(), chains.end(),
            [&](size_t a, size_t b) { return target.view.chains[a].id < target.view.chains[b].id; });
  return chains;
}

// With slashes between the chains.
std::string sequence_text(const Target& target, const at::Tensor& S_L) {
  const at::Tensor S = S_L.to(at::kCPU).contiguous();
  const auto* const amino_acids = S.const_data_ptr<int64_t>();
  const std::vector<size_t> chains = by_name(target);
  std::string text;
  for (const size_t c : chains) {
    if (c != chains.front()) text += '/';
    const ChainView& chain = target.view.chains[c];
    for (uint32_t i = chain.begin; i < chain.end; ++i) text += kResidueAlphabet[amino_acids[target.place_of[i]]];
  }
  return text;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class ScoreTask final : public MpnnTask {
 public:
  using MpnnTask::MpnnTask;

 private:
  Status read_inputs(FileSystem& fs) override {
    if (options().fasta.empty()) return {};
    const std::string what = "--fasta " + options().fasta;
    constexpr int64_t kFastaBytesMax = int64_t{1} << 30;
    const Result<std::string> text = read_file(fs, options().fasta, kFastaBytesMax);
    if (!text.ok()) return Error{ErrorCode::kInvalid, what + ": " + text.error().message};
    TRY_ASSIGN(fasta_, parse_fasta(*text, what));
    return {};
  }

  Status work(const EncodedTarget& encoded, std::string& remark) override {
    const int64_t orders = options().num_orders;
    double own = 0.0;
    TRY(score(encoded, encoded.input.S_BL, nullptr, own));
    for (const FastaRecord& record : fasta_) {
      TRY_ASSIGN(const at::Tensor S_L, with_sequence(encoded.target, record));
      double ignored = 0.0;
      TRY(score(encoded, S_L.unsqueeze(0).to(encoded.input.S_BL.device()), &record, ignored));
    }
    remark = counted(encoded.input.S_BL.size(1), "residue") + ", score " + with_digits(own, 4) + " of " +
             counted(orders, "order");
    if (!fasta_.empty()) remark += ", and " + counted(static_cast<int64_t>(fasta_.size()), "sequence");
    return {};
  }

  // The structure's amino acids with those of the record in its designed chains: [L], on the host.
  static Result<at::Tensor> with_sequence(const Target& target, const FastaRecord& record) {
    const auto wrong = [&](const std::string& message) {
      return Error{ErrorCode::kInvalid, "--fasta: the sequence \"" + record.header + "\" " + message};
    };
    at::Tensor S_L = target.input.S_BL[0].clone();
    auto* const amino_acids = S_L.mutable_data_ptr<int64_t>();
    const std::vector<size_t> chains = by_name(target);
    std::istringstream parts(record.sequence);
    std::string part;
    size_t found = 0;
    std::string lengths;
    for (const size_t c : chains) {
      const ChainView& chain = target.view.chains[c];
      lengths +=
          (lengths.empty() ? "" : ", ") + std::string(chain.id) + " of " + std::to_string(chain.end - chain.begin);
    }
    const std::string expected = "; " + std::string(target.view.name) + " has the designed chains " + lengths +
                                 " residues (gaps counted), with / between them";
    for (; std::getline(parts, part, '/'); ++found) {
      if (found == chains.size()) return wrong("has more than " + std::to_string(found) + " chains" + expected);
      const ChainView& chain = target.view.chains[chains[found]];
      if (part.size() != chain.end - chain.begin) {
        return wrong("has " + std::to_string(part.size()) + " letters in part " + std::to_string(found + 1) + expected);
      }
      for (size_t i = 0; i < part.size(); ++i) {
        const size_t amino_acid = part[i] == '-' ? size_t{kUnknownResidue} : kResidueAlphabet.find(part[i]);
        if (amino_acid == std::string_view::npos) {
          return wrong("has the letter \"" + std::string(1, part[i]) + "\"; expected some of " +
                       std::string(kResidueAlphabet));
        }
        amino_acids[target.place_of[chain.begin + i]] = static_cast<int64_t>(amino_acid);
      }
    }
    if (found != chains.size()) return wrong("has " + counted(static_cast<int64_t>(found), "chain") + expected);
    return S_L;
  }

  // Writes a line about the sequence. record: where it comes from; null: it is the structure's own.
  Status score(const EncodedTarget& encoded, const at::Tensor& S_BL, const FastaRecord* record, double& mean) const {
    const Target& target = encoded.target;
    const int64_t l = S_BL.size(1);
    const int64_t orders = options().num_orders;
    const int64_t at_once = sequences_at_once(model().shape(), l, orders);
    std::vector<double> score;
    std::vector<double> global_score;
    at::Tensor log_probs_LA = at::zeros({l, kNumAminoAcids}, encoded.encoding.nodes_BLD.options());
    for (int64_t first = 0; first < orders; first += at_once) {
      const int64_t n = std::min(at_once, orders - first);
      const Scored scored =
          score_sequences(model(), encoded, S_BL.expand({n, l}), draw_order(encoded, key_of(first), n));
      score.insert(score.end(), scored.score.begin(), scored.score.end());
      global_score.insert(global_score.end(), scored.global_score.begin(), scored.global_score.end());
      log_probs_LA += scored.log_probs_NLA.sum(0);
    }
    OrderedJson line = {{"name", std::string(target.view.name)}};
    if (record != nullptr) line["fasta"] = record->header;
    line["score"] = rounded(mean_of(score));
    line["score_std"] = rounded(deviation_of(score));
    line["global_score"] = rounded(mean_of(global_score));
    line["global_score_std"] = rounded(deviation_of(global_score));
    line["orders"] = orders;
    line["designed_chains"] = ids_of(target.view, target.designed_chains);
    line["fixed_chains"] = ids_of(target.view, target.fixed_chains);
    line["sequence"] = sequence_text(target, S_BL[0]);
    if (options().residues) {
      const at::Tensor S_L = S_BL[0].to(at::kCPU).contiguous();
      line["amino_acids"] = kResidueAlphabet;
      line["residues"] =
          residues(target, S_L.const_data_ptr<int64_t>(), (log_probs_LA / static_cast<double>(orders)).to(at::kCPU));
    }
    mean = mean_of(score);
    return write(dump_line(line) + "\n");
  }

  // Of the designed residues, the mean over the orders.
  static OrderedJson residues(const Target& target, const int64_t* amino_acids, const at::Tensor& log_probs_LA) {
    OrderedJson list = OrderedJson::array();
    const at::Tensor designed = target.designed_BL();
    const auto values = log_probs_LA.accessor<float, 2>();
    for (size_t i = 0; i < target.view.size(); ++i) {
      const int64_t place = target.place_of[i];
      if (place < 0 || designed.const_data_ptr<float>()[place] == 0.0F) continue;
      const auto own = static_cast<size_t>(amino_acids[place]);
      OrderedJson all = OrderedJson::array();
      for (int64_t a = 0; a < kNumAminoAcids; ++a) all.push_back(rounded(values[place][a]));
      OrderedJson residue = {{"chain", std::string(target.view.chains[target.view.chain_of[i]].id)},
                             {"number", target.view.numbers[i]}};
      if (target.view.insertion_codes[i] != ' ')
        residue["insertion_code"] = std::string(1, target.view.insertion_codes[i]);
      residue["amino_acid"] = std::string(1, kResidueAlphabet[own]);
      residue["log_prob"] = rounded(values[place][static_cast<int64_t>(own)]);
      residue["log_probs"] = std::move(all);
      list.push_back(std::move(residue));
    }
    return list;
  }

  std::vector<FastaRecord> fasta_;
};

// As Python writes a list of words.
std::string python_list(const std::vector<std::string>& words) {
  std::string text = "[";
  for (const std::string& word : words) text += (text.size() == 1 ? "'" : ", '") + word + "'";
  return text + "]";
}

class DesignTask final : public MpnnTask {
 public:
  explicit DesignTask(const TaskInput& input)
      : MpnnTask(input), model_name_(std::filesystem::path(input.weights_path).stem().string()) {}

 private:
  Status work(const EncodedTarget& encoded, std::string& remark) override {
    const Target& target = encoded.target;
    const int64_t l = encoded.input.S_BL.size(1);
    TRY_ASSIGN(DesignOptions how, design_options(encoded));
    const Scored native = score_sequences(model(), encoded, encoded.input.S_BL, draw_order(encoded, key_of(0), 1));
    TRY(write(native_text(target, native)));
    TRY_ASSIGN(const std::vector<double> temperatures, temperatures_of(options()));
    std::vector<double> recoveries;
    // The same sequences come of it, whatever the batch.
    const int64_t batch = sequences_at_once(model().shape(), l, options().batch);
    for (size_t t = 0; t < temperatures.size(); ++t) {
      how.temperature = temperatures[t];
      for (int64_t first = 0; first < options().num_sequences; first += batch) {
        const int64_t n = std::min(batch, options().num_sequences - first);
        const SampleKey key = key_of(first, static_cast<int64_t>(t));
        // Tied residues are decoded together, which needs one order for the whole batch: that of the first sequence.
        const at::Tensor order_NL =
            target.tied.empty()
                ? draw_order(encoded, key, n)
                : order_with_ties(draw_order(encoded, key_of(0, key.step), 1), target.tied).expand({n, l});
        const at::Tensor uniforms_NL = design_uniforms(key, n, l).to(encoded.input.S_BL.device());
        const at::Tensor S_NL = design(model(), encoded.encoding, encoded.input.S_BL[0], how, order_NL, uniforms_NL);
        const Scored scored = score_sequences(model(), encoded, S_NL, order_NL);
        const std::vector<double> recovery =
            to_vector((S_NL.eq(encoded.input.S_BL) * encoded.designed_BL).sum(1) / encoded.designed_BL.sum(1));
        std::string text;
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          text += design_text(target, temperatures[t], first + i + 1, S_NL[i], scored.score[at],
                              scored.global_score[at], recovery[at]);
        }
        TRY(write(text));
        recoveries.insert(recoveries.end(), recovery.begin(), recovery.end());
      }
    }
    remark = counted(static_cast<int64_t>(recoveries.size()), "sequence") + " of " + counted(l, "residue") +
             ", mean recovery " + with_digits(mean_of(recoveries), 4);
    const at::Tensor own_N = encoded.input.S_BL[0].masked_select(encoded.designed_BL[0].gt(0)).to(at::kCPU);
    const auto residues = static_cast<double>(own_N.numel());
    recovered_ += mean_of(recoveries) * residues;
    natives_A_ += at::bincount(own_N, {}, kNumAminoAcids).to(at::kDouble);
    return {};
  }

  // By residues.
  [[nodiscard]] std::string last_remark() const override {
    const double residues = natives_A_.sum().item<double>();
    const auto most = natives_A_.argmax().item<int64_t>();
    return "recovery over all designed residues " + with_digits(recovered_ / residues, 4) + "; always " +
           kResidueAlphabet[static_cast<size_t>(most)] +
           ", their most frequent amino acid: " + with_digits(natives_A_[most].item<double>() / residues, 4);
  }

  [[nodiscard]] Result<DesignOptions> design_options(const EncodedTarget& encoded) const {
    const Target& target = encoded.target;
    const int64_t l = encoded.input.S_BL.size(1);
    const at::Device device = encoded.input.S_BL.device();
    const auto column = [](char letter) { return static_cast<int64_t>(kResidueAlphabet.find(letter)); };
    const at::Tensor omitted_LA = at::zeros({l, kNumAminoAcids}, at::kBool);
    for (const char letter : options().omit_aa) omitted_LA.select(1, column(letter)).fill_(true);
    for (const auto& [position, letters] : target.chosen.omitted) {
      const int64_t place = target.place_of[static_cast<size_t>(position)];
      for (const char letter : letters) omitted_LA[place][column(letter)] = true;
      if (!omitted_LA[place].all().item<bool>()) continue;
      return Error{ErrorCode::kInvalid, "--omit_AA_jsonl leaves nothing to draw at residue " +
                                            std::to_string(target.view.numbers[static_cast<size_t>(position)]) +
                                            " of " + std::string(target.view.name)};
    }
    const at::Tensor bias_LA = at::zeros({l, kNumAminoAcids});
    for (size_t a = 0; a < bias_of_files().size(); ++a) {
      bias_LA.select(1, static_cast<int64_t>(a)).add_(bias_of_files()[a]);
    }
    const auto biases = biases_of(options());  // checked before
    for (const auto& [letter, value] : *biases) bias_LA.select(1, column(letter)).add_(value);
    auto* const bias = bias_LA.mutable_data_ptr<float>();
    for (const auto& [position, values] : target.chosen.bias) {
      float* const row = bias + target.place_of[static_cast<size_t>(position)] * kNumAminoAcids;
      for (size_t a = 0; a < values.size(); ++a) row[a] += static_cast<float>(values[a]);
    }
    at::Tensor tied_weights_L;
    if (!target.chosen.tied_weights.empty()) tied_weights_L = at::ones({l});
    for (const auto& [position, weight] : target.chosen.tied_weights) {
      tied_weights_L[target.place_of[static_cast<size_t>(position)]] = weight;
    }
    return DesignOptions{.temperature = 1.0,
                         .designed_L = encoded.designed_BL[0],
                         .bias_LA = bias_LA.to(device),
                         .omitted_LA = omitted_LA.to(device),
                         .tied = target.tied,
                         .tied_weights_L = tied_weights_L.defined() ? tied_weights_L.to(device) : tied_weights_L};
  }

  [[nodiscard]] std::string native_text(const Target& target, const Scored& native) const {
    const auto designed = ids_of(target.view, target.designed_chains);
    const auto fixed = ids_of(target.view, target.fixed_chains);
    const std::string sequence = sequence_text(target, target.input.S_BL[0]);
    if (options().format == DesignFormat::kJsonLines) {
      return dump_line(OrderedJson{{"name", std::string(target.view.name)},
                                   {"sample", 0},
                                   {"score", rounded(native.score[0])},
                                   {"global_score", rounded(native.global_score[0])},
                                   {"fixed_chains", fixed},
                                   {"designed_chains", designed},
                                   {"model_name", model_name_},
                                   {"seed", options().seed},
                                   {"sequence", sequence}}) +
             "\n";
    }
    return ">" + std::string(target.view.name) + ", score=" + with_digits(native.score[0], 4) +
           ", global_score=" + with_digits(native.global_score[0], 4) + ", fixed_chains=" + python_list(fixed) +
           ", designed_chains=" + python_list(designed) + ", model_name=" + model_name_ +
           ", git_hash=unknown, seed=" + std::to_string(options().seed) + "\n" + sequence + "\n";
  }

  [[nodiscard]] std::string design_text(const Target& target, double temperature, int64_t number, const at::Tensor& S_L,
                                        double score, double global_score, double recovery) const {
    const std::string sequence = sequence_text(target, S_L);
    if (options().format == DesignFormat::kJsonLines) {
      return dump_line(OrderedJson{{"name", std::string(target.view.name)},
                                   {"sample", number},
                                   {"temperature", temperature},
                                   {"score", rounded(score)},
                                   {"global_score", rounded(global_score)},
                                   {"seq_recovery", rounded(recovery)},
                                   {"sequence", sequence}}) +
             "\n";
    }
    return ">T=" + dump_line(Json(temperature)) + ", sample=" + std::to_string(number) +
           ", score=" + with_digits(score, 4) + ", global_score=" + with_digits(global_score, 4) +
           ", seq_recovery=" + with_digits(recovery, 4) + "\n" + sequence + "\n";
  }

  std::string model_name_;
  double recovered_ = 0.0;  // designed residues with their own amino acid, on average over the sequences
  at::Tensor natives_A_ = at::zeros({kNumAminoAcids}, at::kDouble);  // designed residues by their own amino acid
};

}  // namespace

std::optional<Failure> mpnn_score(const TaskInput& input) { return ScoreTask(input).run(); }

std::optional<Failure> mpnn_design(const TaskInput& input) { return DesignTask(input).run(); }

}  // namespace lockstep
