#include "runner/models/protein/design/mpnn_tasks.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/clock.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/checkpoint/reader.h"
#include "runner/formats/open_text.h"
#include "runner/models/protein/data/prepare_structures.h"
#include "runner/models/protein/data/structure_source.h"
#include "runner/models/protein/design/mpnn_helper_files.h"
#include "runner/models/protein/design/mpnn_sampling.h"
#include "runner/models/protein/design/mpnn_target.h"
#include "runner/models/protein/design/mpnn_task_flags.h"
#include "runner/models/protein/mpnn_model.h"
#include "runner/models/protein/mpnn_workload.h"
#include "runner/models/protein/protein_flags.h"
#include "runner/models/protein/token_batches.h"

namespace lockstep {
namespace {

// The number of structures that are prepared ahead, so that some of them have about the same length and can share a
// batch. They take little memory compared with a batch: their tensors, and their results until those of earlier
// structures are written.
constexpr size_t kStructuresAhead = 256;

constexpr size_t kUnknownShown = 3;  // of a list, in a message

std::string with_digits(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// Rounded to four digits, as the public script prints scores; null if it is not finite (a score over no residues).
OrderedJson rounded(double value) {
  return std::isfinite(value) ? OrderedJson(std::stod(with_digits(value, 4))) : OrderedJson(nullptr);
}

MpnnInput on_device(const MpnnInput& input, at::Device device) {
  return {.X_BL4C = input.X_BL4C.to(device),
          .S_BL = input.S_BL.to(device),
          .mask_BL = input.mask_BL.to(device),
          .chain_M_BL = input.chain_M_BL.to(device),
          .residue_idx_BL = input.residue_idx_BL.to(device),
          .chain_encoding_BL = input.chain_encoding_BL.to(device)};
}

// A batch of B structures, whose backbones are encoded. It has N = B · n sequences, n for each structure, in the order
// of per_sequence.
struct EncodedBatch {
  std::vector<Target> targets;
  MpnnInput input;  // on the device
  MpnnEncoding encoding;
  at::Tensor designed_BL;

  [[nodiscard]] int64_t size() const { return input.S_BL.size(0); }
  [[nodiscard]] int64_t length() const { return input.S_BL.size(1); }
};

// Log-probabilities of sequences [N, L, A], and their two scores.
struct Scored {
  at::Tensor log_probs_NLA;
  std::vector<double> score;         // over the designed places
  std::vector<double> global_score;  // over all places with coordinates
};

std::vector<double> to_vector(const at::Tensor& values_N) {
  const at::Tensor values = values_N.to(at::kCPU, at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

Scored score_sequences(const MpnnModel& model, const EncodedBatch& batch, const at::Tensor& S_NL,
                       const at::Tensor& order_NL) {
  const at::Tensor log_probs_NLA = model.decode(batch.encoding, S_NL, order_NL);
  const auto mean_over = [&](const at::Tensor& weights_BL) {
    const at::Tensor weights_NL = per_sequence(weights_BL, S_NL.size(0) / batch.size());
    return to_vector(mean_negative_log_prob(log_probs_NLA, S_NL, weights_NL));
  };
  return {.log_probs_NLA = log_probs_NLA,
          .score = mean_over(batch.designed_BL),
          .global_score = mean_over(batch.input.mask_BL)};
}

// Repeats the random numbers of n sequences for each structure of a batch: [n, L] → [N, L]. A number depends on its
// place in the structure, but not on the structure's length, so all structures use those of the longest one.
at::Tensor repeated_for_structures(const EncodedBatch& batch, const at::Tensor& numbers_NL) {
  return numbers_NL.to(batch.input.S_BL.device()).repeat({batch.size(), 1});
}

at::Tensor draw_order(const EncodedBatch& batch, const SampleKey& key, int64_t n) {
  const at::Tensor normals_NL = repeated_for_structures(batch, order_normals(key, n, batch.length()));
  return decoding_order(normals_NL, per_sequence(batch.designed_BL, n));
}

// Writes the results in the order of the structures, whatever the order in which they are computed.
class ResultsInOrder {
 public:
  explicit ResultsInOrder(const TaskInput& input) : input_(input) {}

  // Appends to the result of structure `number`, counted from 0.
  Status add(int64_t number, const std::string& text) {
    waiting_[number].text += text;
    return number == next_ ? write_next() : Status();
  }

  // To be called when the result of structure `number` is complete. remark: a line about it for the user, which is
  // logged once the result is written.
  Status finish(int64_t number, std::string remark) {
    waiting_[number].remark = std::move(remark);
    for (auto next = waiting_.find(next_); next != waiting_.end() && next->second.remark;
         next = waiting_.find(++next_)) {
      TRY(write_next());
      input_.log(*next->second.remark);
      waiting_.erase(next);
    }
    return {};
  }

 private:
  struct Waiting {
    std::string text;                   // the part of the result that is not written yet
    std::optional<std::string> remark;  // set once the result is complete
  };

  Status write_next() {
    const std::string text = std::exchange(waiting_[next_].text, "");
    return text.empty() ? Status() : input_.out(text.data(), text.size());
  }

  const TaskInput& input_;
  std::map<int64_t, Waiting> waiting_;  // by the structures' numbers
  int64_t next_ = 0;                    // the first structure whose result is not complete
};

using Names = std::map<std::string, bool>;  // whether a structure has it

// The most sequences (for scores: decoding orders) that are computed at once.
struct AtOnce {
  int64_t of_structure = 1;                                // for one structure
  int64_t of_batch = std::numeric_limits<int64_t>::max();  // for all structures of a batch; at least of_structure
};

// What scoring and design have in common: reads the structures of --pdb_path and runs the task on batches of them.
class MpnnTask {
 public:
  MpnnTask(const TaskInput& input, const AtOnce& at_once)
      : input_(input),
        options_(options_of<MpnnTaskOptions>(input.config)),
        at_once_(at_once),
        model_(mpnn_shape(options_of<ProteinOptions>(input.config)), input.device),
        results_(input) {}
  virtual ~MpnnTask() = default;

  std::optional<Failure> run() {
    const at::NoGradGuard no_grad;
    const Status copied = copy_tensors(input_.weights, model_.parameters(), input_.weights_path);
    if (!copied.ok()) return usage_failure(copied.error().message);
    const Result<HelperFiles> files = HelperFiles::read(input_.fs, options_);
    if (!files.ok()) return usage_failure(files.error().message);
    bias_ = files->bias();
    const Status ready = read_inputs();
    if (!ready.ok()) return usage_failure(ready.error().message);
    Result<Names> only = names_of_only();
    if (!only.ok()) return usage_failure(only.error().message);
    const std::string& path = options_of<ProteinOptions>(input_.config).pdb_path;
    const auto prepared = prepare_structures(input_.fs, path, /*cache_folder=*/"", with_progress());
    if (!prepared.ok()) return data_failure(prepared.error().message);
    const StructureCache& cache = prepared->cache;
    for (const SkippedFile& skipped : cache.skipped()) input_.log("skipped " + skipped.file + ": " + skipped.reason);
    for (const SkippedFile& file : prepared->remarks) input_.log("left out " + file.file + ": " + file.reason);

    std::vector<StructureView> views;
    for (int64_t i = 0; i < cache.size(); ++i) {
      auto view = cache.structure(i);
      if (!view.ok()) return data_failure(view.error().message);
      if (options_.only.empty() || is_named(view->name, *only)) views.push_back(std::move(*view));
    }
    if (views.empty()) return usage_failure("--only " + options_.only + " names no structure of " + path);
    log_remarks(cache, views, *only);
    total_ = static_cast<int64_t>(views.size());
    for (size_t begin = 0; begin < views.size(); begin += kStructuresAhead) {
      const size_t count = std::min(kStructuresAhead, views.size() - begin);
      if (auto failure = run_some(std::span(views).subspan(begin, count), static_cast<int64_t>(begin), *files)) {
        return failure;
      }
    }
    if (const std::string remark = last_remark(); !remark.empty()) input_.log(remark);
    return std::nullopt;
  }

 protected:
  // Called before the first structure. Its errors end the task as usage errors.
  virtual Status read_inputs() { return {}; }
  // Checks the flags that only this task has against a structure. Errors (kInvalid): they do not fit it.
  [[nodiscard]] virtual Status check(const Target& target) const = 0;
  // Computes and writes the results of structures that passed check(). Returns a remark about each, for the user.
  virtual Result<std::vector<std::string>> work(const EncodedBatch& batch) = 0;
  // A remark for the user when all structures are done; empty: none.
  [[nodiscard]] virtual std::string last_remark() const { return {}; }

  Status write(const Target& target, const std::string& text) { return results_.add(target.number, text); }
  [[nodiscard]] FileSystem& files() const { return input_.fs; }
  [[nodiscard]] const MpnnTaskOptions& options() const { return options_; }
  [[nodiscard]] const MpnnModel& model() const { return model_; }
  [[nodiscard]] const AminoAcidValues& bias_of_files() const { return bias_; }
  // The key for the random numbers of sequence (or order) `first` and the following ones.
  [[nodiscard]] SampleKey key_of(int64_t first, int64_t temperature = 0) const {
    return {.seed = options_.seed, .step = temperature, .first_slot = first};
  }
  // The number of sequences that are computed at once for each structure. The sequences do not depend on it.
  [[nodiscard]] int64_t sequences_at_once(const EncodedBatch& batch) const {
    return std::clamp<int64_t>(options_.batch_tokens / (batch.size() * batch.length()), 1, at_once_.of_structure);
  }

 private:
  // The names in the file of --only, none of them found yet; empty without the flag.
  [[nodiscard]] Result<Names> names_of_only() const {
    Names names;
    if (options_.only.empty()) return names;
    constexpr uint64_t kNamesBytesMax = uint64_t{1} << 26;
    const Result<OpenedText> opened = open_text(input_.fs, options_.only, kNamesBytesMax);
    if (!opened.ok()) return Error{ErrorCode::kInvalid, "--only " + opened.error().message};
    for (std::string& entry : entries_of_list(opened->text)) names.emplace(std::move(entry), false);
    return names;
  }

  // Whether the list names the structure, with or without the ending of its file. Marks the names that do.
  static bool is_named(std::string_view structure, Names& names) {
    bool is_named = false;
    for (auto& [entry, is_found] : names) {
      if (entry != structure && structure_name_in_list(entry) != structure) continue;
      is_found = true;
      is_named = true;
    }
    return is_named;
  }

  // Names of --only that fit nothing, and how the structures were read.
  void log_remarks(const StructureCache& cache, const std::vector<StructureView>& views, const Names& only) const {
    std::vector<std::string> unknown;
    for (const auto& [entry, is_found] : only) {
      if (!is_found) unknown.push_back(entry);
    }
    if (!unknown.empty()) {
      input_.log("--only " + options_.only + ": " + plural(unknown.size(), "name") + " in it " +
                 (unknown.size() == 1 ? "fits" : "fit") + " no structure: " + first_of(unknown, kUnknownShown));
    }
    std::set<std::string_view> used;
    for (const StructureView& view : views) used.insert(view.name);
    for (const SkippedFile& remark : cache.remarks()) {
      if (used.contains(remark.file)) input_.log(remark.file + ": " + remark.reason);
    }
  }

  // Logs every few seconds how many structures of a large folder have been read.
  [[nodiscard]] PrepareOptions with_progress() const {
    static constexpr auto kInterval = std::chrono::seconds(3);
    return {.progress = [this, logged_at = now()](int64_t done, int64_t total) mutable {
      if (now() - logged_at < kInterval) return true;
      logged_at = now();
      input_.log("read " + std::to_string(done) + " of " + std::to_string(total) + " structures");
      return true;
    }};
  }

  // Runs the task on these structures, the first of which has the number `first`. A structure that the flags do not fit
  // ends the task, but only after the structures before it are done.
  std::optional<Failure> run_some(std::span<const StructureView> views, int64_t first, const HelperFiles& files) {
    std::vector<Target> targets;
    std::optional<Failure> refused;
    for (const StructureView& view : views) {
      Result<Target> target = make_target(view, options_, files);
      const Status fits = target.ok() ? check(*target) : Status(target.error());
      if (!fits.ok()) {
        refused = usage_failure(fits.error().message);
        break;
      }
      target->number = first + static_cast<int64_t>(targets.size());
      targets.push_back(std::move(*target));
    }
    for (const std::vector<int64_t>& places : batches_of(targets)) {
      std::vector<Target> of_batch;
      for (const int64_t place : places) of_batch.push_back(std::move(targets[static_cast<size_t>(place)]));
      const Status done = run_batch(std::move(of_batch));
      if (!done.ok()) return failure_of(done.error(), ExitCode::kCheckpoint);
    }
    return refused;
  }

  // Divides the targets into batches of about the same length. A structure with tied places is a batch by itself,
  // because its sequences must have the same order. The batches are sorted by their first structure, so that its result
  // can be written at once.
  [[nodiscard]] std::vector<std::vector<int64_t>> batches_of(const std::vector<Target>& targets) const {
    std::vector<std::vector<int64_t>> batches;
    std::vector<PackedSample> untied;
    for (size_t i = 0; i < targets.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      if (targets[i].tied.empty()) {
        untied.push_back({.sample = place, .length = targets[i].length() * at_once_.of_structure});
      } else {
        batches.push_back({place});
      }
    }
    const PackLimits limits{.tokens_max = options_.batch_tokens,
                            .samples_max = at_once_.of_batch / at_once_.of_structure};
    for (std::vector<int64_t>& batch : pack_by_length(std::move(untied), limits)) {
      std::sort(batch.begin(), batch.end());
      batches.push_back(std::move(batch));
    }
    std::sort(batches.begin(), batches.end());
    return batches;
  }

  Status run_batch(std::vector<Target> targets) {
    const auto began = now();
    const MpnnInput input = on_device(padded_batch(targets), input_.device);
    const EncodedBatch batch{.targets = std::move(targets),
                             .input = input,
                             .encoding = model_.encode(input),
                             .designed_BL = designed_places(input)};
    TRY_ASSIGN(const std::vector<std::string> remarks, work(batch));
    std::string in_time = " in " + seconds_since(began);
    if (batch.size() > 1) in_time += " with " + plural(batch.size() - 1, "other");
    for (size_t b = 0; b < remarks.size(); ++b) {
      const Target& target = batch.targets[b];
      TRY(results_.finish(target.number, std::string(target.view.name) + ": " + remarks[b] + in_time + " (" +
                                             std::to_string(target.number + 1) + " of " + std::to_string(total_) +
                                             ")"));
    }
    return {};
  }

  const TaskInput& input_;
  const MpnnTaskOptions& options_;
  AtOnce at_once_;
  MpnnModel model_;
  ResultsInOrder results_;
  AminoAcidValues bias_{};
  int64_t total_ = 0;  // structures
};

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
  explicit ScoreTask(const TaskInput& input)
      : MpnnTask(input, {.of_structure = options_of<MpnnTaskOptions>(input.config).num_orders}) {}

 private:
  Status read_inputs() override {
    if (options().fasta.empty()) return {};
    constexpr uint64_t kFastaBytesMax = uint64_t{1} << 30;
    const Result<OpenedText> opened = open_text(files(), options().fasta, kFastaBytesMax);
    if (!opened.ok()) return Error{ErrorCode::kInvalid, "--fasta " + opened.error().message};
    TRY_ASSIGN(fasta_, parse_fasta(opened->text, "--fasta " + options().fasta));
    return {};
  }

  [[nodiscard]] Status check(const Target& target) const override {
    for (const FastaRecord& record : fasta_) TRY(with_sequence(target, record));
    return {};
  }

  Result<std::vector<std::string>> work(const EncodedBatch& batch) override {
    TRY_ASSIGN(const std::vector<double> own, score(batch, batch.input.S_BL, nullptr));
    for (const FastaRecord& record : fasta_) {
      const at::Tensor S_BL = at::zeros({batch.size(), batch.length()}, at::kLong);
      for (size_t b = 0; b < batch.targets.size(); ++b) {
        TRY_ASSIGN(const at::Tensor S_L, with_sequence(batch.targets[b], record));
        S_BL[static_cast<int64_t>(b)].narrow(0, 0, S_L.size(0)).copy_(S_L);
      }
      TRY(score(batch, S_BL.to(batch.input.S_BL.device()), &record));
    }
    std::vector<std::string> remarks;
    for (size_t b = 0; b < batch.targets.size(); ++b) {
      std::string remark = plural(batch.targets[b].length(), "residue") + ", score " + with_digits(own[b], 4) + " of " +
                           plural(options().num_orders, "order");
      if (!fasta_.empty()) remark += ", and " + plural(fasta_.size(), "sequence");
      remarks.push_back(std::move(remark));
    }
    return remarks;
  }

  // The structure's amino acids with those of the record in its designed chains: [L], on the host.
  static Result<at::Tensor> with_sequence(const Target& target, const FastaRecord& record) {
    const auto wrong = [&](const std::string& message) {
      return Error{ErrorCode::kInvalid, "--fasta: the sequence \"" + record.header + "\" " + message};
    };
    at::Tensor S_L = target.input.S_BL[0].clone();
    auto* const amino_acids = S_L.mutable_data_ptr<int64_t>();
    const std::vector<size_t> chains = designed_chains_by_name(target);
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
    if (found != chains.size()) return wrong("has " + plural(found, "chain") + expected);
    return S_L;
  }

  // Scores one sequence of each structure, writes a line about each, and returns the scores. record: the FASTA record
  // that the sequences come from; null: they are the structures' own.
  Result<std::vector<double>> score(const EncodedBatch& batch, const at::Tensor& S_BL, const FastaRecord* record) {
    const int64_t orders = options().num_orders;
    std::vector<std::vector<double>> scores(batch.targets.size());
    std::vector<std::vector<double>> global_scores(batch.targets.size());
    at::Tensor log_probs_BLA =
        at::zeros({batch.size(), batch.length(), kNumAminoAcids}, batch.encoding.nodes_BLD.options());
    for (int64_t first = 0; first < orders;) {
      const int64_t n = std::min(sequences_at_once(batch), orders - first);
      const Scored scored = score_sequences(model(), batch, per_sequence(S_BL, n), draw_order(batch, key_of(first), n));
      for (size_t row = 0; row < scored.score.size(); ++row) {
        const size_t b = row / static_cast<size_t>(n);
        scores[b].push_back(scored.score[row]);
        global_scores[b].push_back(scored.global_score[row]);
      }
      log_probs_BLA += scored.log_probs_NLA.view({batch.size(), n, batch.length(), kNumAminoAcids}).sum(1);
      first += n;
    }
    const at::Tensor mean_log_probs_BLA = (log_probs_BLA / static_cast<double>(orders)).to(at::kCPU);
    const at::Tensor on_host_BL = S_BL.to(at::kCPU).contiguous();
    std::vector<double> means;
    for (size_t b = 0; b < batch.targets.size(); ++b) {
      const Target& target = batch.targets[b];
      const at::Tensor S_L = on_host_BL[static_cast<int64_t>(b)];
      OrderedJson line = {{"name", std::string(target.view.name)}};
      if (record != nullptr) line["fasta"] = record->header;
      line["score"] = rounded(mean_of(scores[b]));
      line["score_std"] = rounded(deviation_of(scores[b]));
      line["global_score"] = rounded(mean_of(global_scores[b]));
      line["global_score_std"] = rounded(deviation_of(global_scores[b]));
      line["orders"] = orders;
      line["designed_chains"] = chain_names(target.view, target.designed_chains);
      line["fixed_chains"] = chain_names(target.view, target.fixed_chains);
      line["sequence"] = sequence_text(target, S_L);
      if (options().residues) {
        line["amino_acids"] = kResidueAlphabet;
        line["residues"] = residues(target, S_L, mean_log_probs_BLA[static_cast<int64_t>(b)]);
      }
      means.push_back(mean_of(scores[b]));
      TRY(write(target, dump_line(line) + "\n"));
    }
    return means;
  }

  // The log-probabilities at the designed residues. log_probs_LA: the means over the orders; like S_L, on the host.
  static OrderedJson residues(const Target& target, const at::Tensor& S_L, const at::Tensor& log_probs_LA) {
    OrderedJson list = OrderedJson::array();
    const at::Tensor designed_BL = designed_places(target.input);
    const auto* const is_designed = designed_BL.const_data_ptr<float>();
    const auto* const amino_acids = S_L.const_data_ptr<int64_t>();
    const auto values = log_probs_LA.accessor<float, 2>();
    for (size_t i = 0; i < target.view.size(); ++i) {
      const int64_t place = target.place_of[i];
      if (place < 0 || is_designed[place] == 0.0F) continue;
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

// Formats a list of words as Python does.
std::string python_list(const std::vector<std::string>& words) {
  std::string text = "[";
  for (const std::string& word : words) text += (text.size() == 1 ? "'" : ", '") + word + "'";
  return text + "]";
}

class DesignTask final : public MpnnTask {
 public:
  explicit DesignTask(const TaskInput& input)
      : MpnnTask(input, at_once_of(options_of<MpnnTaskOptions>(input.config))),
        model_name_(std::filesystem::path(input.weights_path).stem().string()) {}

 private:
  static AtOnce at_once_of(const MpnnTaskOptions& options) {
    return {.of_structure = std::min(options.num_sequences, options.batch), .of_batch = options.batch};
  }

  [[nodiscard]] Status check(const Target& target) const override {
    TRY(omitted_of(target));
    return {};
  }

  Result<std::vector<std::string>> work(const EncodedBatch& batch) override {
    const int64_t l = batch.length();
    const Scored native = score_sequences(model(), batch, batch.input.S_BL, draw_order(batch, key_of(0), 1));
    for (size_t b = 0; b < batch.targets.size(); ++b) {
      const Target& target = batch.targets[b];
      TRY(write(target, native_text(target, native.score[b], native.global_score[b])));
    }
    DesignOptions how = design_options(batch);
    TRY_ASSIGN(const std::vector<double> temperatures, temperatures_of(options()));
    std::vector<std::vector<double>> recoveries(batch.targets.size());
    for (size_t t = 0; t < temperatures.size(); ++t) {
      how.temperature = temperatures[t];
      for (int64_t first = 0; first < options().num_sequences;) {
        const int64_t n = std::min(sequences_at_once(batch), options().num_sequences - first);
        const SampleKey key = key_of(first, static_cast<int64_t>(t));
        // Tied residues are decoded together, for which all sequences must have the same order: that of the first one.
        const at::Tensor order_NL =
            how.tied.empty() ? draw_order(batch, key, n)
                             : order_with_ties(draw_order(batch, key_of(0, key.step), 1), how.tied).expand({n, l});
        const at::Tensor uniforms_NL = repeated_for_structures(batch, design_uniforms(key, n, l));
        const at::Tensor S_NL = design(model(), batch.encoding, batch.input.S_BL, how, order_NL, uniforms_NL);
        TRY(write_designs(batch, temperatures[t], first, S_NL, score_sequences(model(), batch, S_NL, order_NL),
                          recoveries));
        first += n;
      }
    }
    std::vector<std::string> remarks;
    for (size_t b = 0; b < batch.targets.size(); ++b) {
      const auto row = static_cast<int64_t>(b);
      remarks.push_back(plural(recoveries[b].size(), "sequence") + " of " +
                        plural(batch.targets[b].length(), "residue") + ", mean recovery " +
                        with_digits(mean_of(recoveries[b]), 4));
      const at::Tensor own_N = batch.input.S_BL[row].masked_select(batch.designed_BL[row].gt(0)).to(at::kCPU);
      recovered_ += mean_of(recoveries[b]) * static_cast<double>(own_N.numel());
      natives_A_ += at::bincount(own_N, {}, kNumAminoAcids).to(at::kDouble);
    }
    return remarks;
  }

  // Writes the sequences from number `first` on, and appends the recovery of each to those of its structure.
  Status write_designs(const EncodedBatch& batch, double temperature, int64_t first, const at::Tensor& S_NL,
                       const Scored& scored, std::vector<std::vector<double>>& recoveries) {
    const int64_t n = S_NL.size(0) / batch.size();
    const at::Tensor designed_NL = per_sequence(batch.designed_BL, n);
    const std::vector<double> recovery =
        to_vector((S_NL.eq(per_sequence(batch.input.S_BL, n)) * designed_NL).sum(1) / designed_NL.sum(1));
    const at::Tensor on_host_NL = S_NL.to(at::kCPU);
    int64_t row = 0;
    for (size_t b = 0; b < batch.targets.size(); ++b) {
      std::string text;
      for (int64_t i = 0; i < n; ++i, ++row) {
        const auto at = static_cast<size_t>(row);
        text += design_text(batch.targets[b], temperature, first + i + 1, on_host_NL[row], scored.score[at],
                            scored.global_score[at], recovery[at]);
        recoveries[b].push_back(recovery[at]);
      }
      TRY(write(batch.targets[b], text));
    }
    return {};
  }

  // The recovery is averaged over residues, not over structures.
  [[nodiscard]] std::string last_remark() const override {
    const double residues = natives_A_.sum().item<double>();
    const auto most = natives_A_.argmax().item<int64_t>();
    return "recovery over all designed residues " + with_digits(recovered_ / residues, 4) + "; always " +
           kResidueAlphabet[static_cast<size_t>(most)] +
           ", their most frequent amino acid: " + with_digits(natives_A_[most].item<double>() / residues, 4);
  }

  [[nodiscard]] DesignOptions design_options(const EncodedBatch& batch) const {
    const at::Device device = batch.input.S_BL.device();
    const at::Tensor bias_BLA = at::zeros({batch.size(), batch.length(), kNumAminoAcids});
    const at::Tensor omitted_BLA = at::zeros({batch.size(), batch.length(), kNumAminoAcids}, at::kBool);
    for (size_t b = 0; b < batch.targets.size(); ++b) {
      const Target& target = batch.targets[b];
      const auto row = static_cast<int64_t>(b);
      bias_BLA[row].narrow(0, 0, target.length()).copy_(bias_of(target));
      omitted_BLA[row].narrow(0, 0, target.length()).copy_(*omitted_of(target));  // no error: see check()
    }
    const Target& first = batch.targets.front();  // the only one, if it has tied places
    at::Tensor tied_weights_L;
    if (!first.chosen.tied_weights.empty()) tied_weights_L = at::ones({first.length()});
    for (const auto& [position, weight] : first.chosen.tied_weights) {
      tied_weights_L[first.place_of[static_cast<size_t>(position)]] = weight;
    }
    return DesignOptions{.temperature = 1.0,
                         .designed_BL = batch.designed_BL,
                         .bias_BLA = bias_BLA.to(device),
                         .omitted_BLA = omitted_BLA.to(device),
                         .tied = first.tied,
                         .tied_weights_L = tied_weights_L.defined() ? tied_weights_L.to(device) : tied_weights_L};
  }

  static int64_t column_of(char letter) { return static_cast<int64_t>(kResidueAlphabet.find(letter)); }

  // What is added to the logits of one structure: [L, A].
  [[nodiscard]] at::Tensor bias_of(const Target& target) const {
    const at::Tensor bias_LA = at::zeros({target.length(), kNumAminoAcids});
    for (size_t a = 0; a < bias_of_files().size(); ++a) {
      bias_LA.select(1, static_cast<int64_t>(a)).add_(bias_of_files()[a]);
    }
    const auto biases = biases_of(options());  // no error: the flags have been checked
    for (const auto& [letter, value] : *biases) bias_LA.select(1, column_of(letter)).add_(value);
    auto* const bias = bias_LA.mutable_data_ptr<float>();
    for (const auto& [position, values] : target.chosen.bias) {
      float* const row = bias + target.place_of[static_cast<size_t>(position)] * kNumAminoAcids;
      for (size_t a = 0; a < values.size(); ++a) row[a] += static_cast<float>(values[a]);
    }
    return bias_LA;
  }

  // The amino acids that may not be drawn in one structure: [L, A], bool. Error (kInvalid): none is left at a residue.
  [[nodiscard]] Result<at::Tensor> omitted_of(const Target& target) const {
    const at::Tensor omitted_LA = at::zeros({target.length(), kNumAminoAcids}, at::kBool);
    for (const char letter : options().omit_aa) omitted_LA.select(1, column_of(letter)).fill_(true);
    for (const auto& [position, letters] : target.chosen.omitted) {
      const int64_t place = target.place_of[static_cast<size_t>(position)];
      for (const char letter : letters) omitted_LA[place][column_of(letter)] = true;
      if (!omitted_LA[place].all().item<bool>()) continue;
      return Error{ErrorCode::kInvalid, "--omit_AA_jsonl leaves nothing to draw at residue " +
                                            std::to_string(target.view.numbers[static_cast<size_t>(position)]) +
                                            " of " + std::string(target.view.name)};
    }
    return omitted_LA;
  }

  [[nodiscard]] std::string native_text(const Target& target, double score, double global_score) const {
    const auto designed = chain_names(target.view, target.designed_chains);
    const auto fixed = chain_names(target.view, target.fixed_chains);
    const std::string sequence = sequence_text(target, target.input.S_BL[0]);
    if (options().format == DesignFormat::kJsonLines) {
      return dump_line(OrderedJson{{"name", std::string(target.view.name)},
                                   {"sample", 0},
                                   {"score", rounded(score)},
                                   {"global_score", rounded(global_score)},
                                   {"fixed_chains", fixed},
                                   {"designed_chains", designed},
                                   {"model_name", model_name_},
                                   {"seed", options().seed},
                                   {"sequence", sequence}}) +
             "\n";
    }
    return ">" + std::string(target.view.name) + ", score=" + with_digits(score, 4) +
           ", global_score=" + with_digits(global_score, 4) + ", fixed_chains=" + python_list(fixed) +
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
  double recovered_ = 0.0;  // number of designed residues with their native amino acid, averaged over the sequences
  at::Tensor natives_A_ = at::zeros({kNumAminoAcids}, at::kDouble);  // number of designed residues by native amino acid
};

}  // namespace

std::optional<Failure> run_protein_task(const TaskInput& input) {
  const std::string& task = input.config.task.name;
  if (options_of<ProteinOptions>(input.config).variant != ProteinVariant::kMpnn) {
    return usage_failure("lockstep protein " + task + " needs a ProteinMPNN checkpoint; " +
                         input.config.task.checkpoint + " was trained with --variant mdm: give one of --variant mpnn");
  }
  return task == "score" ? ScoreTask(input).run() : DesignTask(input).run();
}

}  // namespace lockstep
