#include "runner/models/protein/design/mpnn_task_flags.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "runner/config/flag_table_builder.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {
namespace {

// A flag for the path of a file that one of the public ProteinMPNN's helper scripts writes.
template <typename Field>
Flag& helper_file(FlagTableBuilder& table, const char* name, Field field, const char* help) {
  return table.text(name, kThisProcess, "a file", field, help);
}

void add_common_flags(FlagTableBuilder& table) {
  table.text("design_chains", kThisProcess, "chains", &MpnnTaskOptions::design_chains,
             "chains to design, as in \"A C\"; the model sees the others, which keep their sequence; empty: all");
  table.text("fixed_positions", kThisProcess, "residues", &MpnnTaskOptions::fixed_positions,
             "residues that keep their amino acid, by the numbers of the file, as in \"A:12-20,25 B:7\"");
  helper_file(table, "only", &MpnnTaskOptions::only,
              "names of the structures to use, one on each line, as in the held_out.txt of a run; empty: all");
  helper_file(table, "chain_id_jsonl", &MpnnTaskOptions::chain_id_jsonl,
              "like --design_chains, as written by assign_fixed_chains.py");
  helper_file(table, "fixed_positions_jsonl", &MpnnTaskOptions::fixed_positions_jsonl,
              "adds to --fixed_positions, as written by make_fixed_positions_dict.py: counted along the chain from 1");
  table.integer(
      "batch_tokens", kThisProcess, 1, kCountMax, &MpnnTaskOptions::batch_tokens,
      "residues of all sequences that are computed at once, with padding; a longer structure is processed alone");
  Flag& seed = table.custom("seed", kThisProcess, "an integer of at least 0", "the same seed gives the same result");
  seed.set = [](std::string_view text, RunConfig& config) {
    return parse_whole(text, options_of<MpnnTaskOptions>(config).seed);
  };
  seed.get = [](const RunConfig& config) { return std::to_string(options_of<MpnnTaskOptions>(config).seed); };
}

void add_score_flags(FlagTableBuilder& table) {
  table.group("Scores");
  add_common_flags(table);
  table.integer("num_orders", kThisProcess, 1, 100'000, &MpnnTaskOptions::num_orders,
                "a score is the mean over so many random decoding orders");
  table.boolean("residues", kThisProcess, &MpnnTaskOptions::residues,
                "also write the log-probabilities of each residue's own and of all amino acids");
  table.text("fasta", kThisProcess, "a file", &MpnnTaskOptions::fasta,
             "score these sequences, too: of the designed chains in the order of their names, with / between them");
}

void add_design_files(FlagTableBuilder& table) {
  helper_file(table, "tied_positions_jsonl", &MpnnTaskOptions::tied_positions_jsonl,
              "like --tied_positions, as written by make_tied_positions_dict.py");
  helper_file(table, "omit_aa_jsonl", &MpnnTaskOptions::omit_aa_jsonl,
              "amino acids that are never drawn at some positions, as written by make_omit_AA.py")
      .aliases = {"omit_AA_jsonl"};
  helper_file(table, "bias_aa_jsonl", &MpnnTaskOptions::bias_aa_jsonl, "adds to --bias, as written by make_bias_AA.py")
      .aliases = {"bias_AA_jsonl"};
  helper_file(table, "bias_by_res_jsonl", &MpnnTaskOptions::bias_by_res_jsonl,
              "what is added to the logits of each position, as written by make_bias_per_res_dict.py");
}

void add_design_flags(FlagTableBuilder& table) {
  table.group("Designs");
  table.integer("num_sequences", kThisProcess, 1, kCountMax, &MpnnTaskOptions::num_sequences,
                "sequences for each structure and temperature");
  table.text("temperature", kThisProcess, "numbers above 0", &MpnnTaskOptions::temperature,
             "one or more, as in \"0.1 0.2\"; higher ones give more diverse sequences, which fit less well");
  add_common_flags(table);
  table.text("tied_positions", kThisProcess, "residues", &MpnnTaskOptions::tied_positions,
             "residues that get the same amino acid, as in \"A:1-20=B:1-20 A:31=A:35\"");
  table.text("omit_aa", kThisProcess, "letters", &MpnnTaskOptions::omit_aa,
             "amino acids that are never drawn, as in CX");
  table.text("bias", kThisProcess, "amino acids and numbers", &MpnnTaskOptions::bias,
             "what is added to the logits of amino acids, as in \"A:-1.1,F:0.7\": below 0 makes them rarer");
  add_design_files(table);
  table.integer("batch", kThisProcess, 1, 65'536, &MpnnTaskOptions::batch,
                "sequences that are designed at once, of one structure or of several");
  table.choice("format", kThisProcess, {"fasta", "jsonl"}, &MpnnTaskOptions::format,
               "fasta: with the headers of the public script; jsonl: a line of JSON for each sequence");
}

// With a lower temperature, a logit divided by it may overflow fp32.
constexpr double kTemperatureMin = 1e-6;
constexpr double kBiasMax = 1e4;

Status check_mpnn_task(const RunConfig& config) {
  if (is_given(config, "pdb_path")) return {};
  return Error{ErrorCode::kInvalid, "--pdb_path is required: a file of a structure (.pdb, .cif, also .gz) or a folder"};
}

Status check_design(const RunConfig& config) {
  TRY(check_mpnn_task(config));
  const MpnnTaskOptions& options = options_of<MpnnTaskOptions>(config);
  TRY(temperatures_of(options));
  size_t omitted = 0;
  for (const char letter : kResidueAlphabet) omitted += options.omit_aa.find(letter) != std::string::npos ? 1 : 0;
  for (const char letter : options.omit_aa) {
    if (kResidueAlphabet.find(letter) != std::string_view::npos) continue;
    return Error{ErrorCode::kInvalid, "--omit_aa: \"" + std::string(1, letter) +
                                          "\" is no amino acid; expected some of " + std::string(kResidueAlphabet)};
  }
  if (omitted == kResidueAlphabet.size()) {
    return Error{ErrorCode::kInvalid, "--omit_aa leaves nothing to draw; expected at most 20 letters"};
  }
  TRY(biases_of(options));
  return {};
}

// The workload's flags that describe the weights, and --pdb_path.
std::vector<std::string> model_flags() {
  return {"pdb_path", "variant", "hidden_dim", "num_encoder_layers", "num_decoder_layers", "num_neighbors"};
}

void set_mpnn_task_defaults(RunConfig& config) { config.task.options = MpnnTaskOptions{}; }

}  // namespace

WorkloadTask mpnn_score_task() {
  return {.name = "score",
          .summary = "how well sequences fit the structures that they are in",
          .examples = {"lockstep protein score --checkpoint v_48_020.pt --pdb_path structures --num_orders 10",
                       "lockstep protein score --checkpoint v_48_020.pt --pdb_path 1ubi.pdb --residues",
                       "lockstep protein score --checkpoint v_48_020.pt --pdb_path complex.pdb "
                       "--design_chains B --fixed_positions B:20-25,30",
                       "lockstep protein score --checkpoint v_48_020.pt --pdb_path structures --residues "
                       "--out scores.jsonl"},
          .set_defaults = set_mpnn_task_defaults,
          .add_flags = add_score_flags,
          .workload_flags = model_flags(),
          .check = check_mpnn_task};
}

WorkloadTask mpnn_design_task() {
  return {.name = "design",
          .summary = "sequences that fold into a structure",
          .examples = {"lockstep protein design --checkpoint v_48_020.pt --pdb_path 1ubi.pdb --num_sequences 8",
                       "lockstep protein design --checkpoint v_48_020.pt --pdb_path complex.pdb "
                       "--design_chains \"A B\" --fixed_positions \"A:20-25,30 B:42\"",
                       "lockstep protein design --checkpoint v_48_020.pt --pdb_path complex.pdb "
                       "--tied_positions A:17-42=B:17-42 --omit_aa CX --bias A:-0.5",
                       "lockstep protein design --checkpoint v_48_020.pt --pdb_path structures "
                       "--temperature \"0.1 0.2\" --format jsonl --out designs.jsonl"},
          .set_defaults = set_mpnn_task_defaults,
          .add_flags = add_design_flags,
          .workload_flags = model_flags(),
          .check = check_design};
}

std::vector<std::string_view> words_of(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

Result<std::vector<double>> temperatures_of(const MpnnTaskOptions& options) {
  std::vector<double> temperatures;
  for (const std::string_view word : words_of(options.temperature, " ,")) {
    double value = 0.0;
    if (!parse_whole(word, value) || !(value >= kTemperatureMin) || !std::isfinite(value)) {
      return Error{ErrorCode::kInvalid, "--temperature: \"" + std::string(word) + "\" is no number of at least " +
                                            number_text(kTemperatureMin)};
    }
    temperatures.push_back(value);
  }
  if (temperatures.empty()) return Error{ErrorCode::kInvalid, "--temperature is empty; expected a number above 0"};
  return temperatures;
}

Result<std::vector<std::pair<char, double>>> biases_of(const MpnnTaskOptions& options) {
  std::vector<std::pair<char, double>> biases;
  for (const std::string_view word : words_of(options.bias, " ,")) {
    double value = 0.0;
    const bool has_form = word.size() >= 3 && word[1] == ':' && kResidueAlphabet.find(word[0]) != std::string::npos;
    const auto [end, error] = has_form ? std::from_chars(word.data() + 2, word.data() + word.size(), value)
                                       : std::from_chars_result{word.data(), std::errc::invalid_argument};
    if (error != std::errc() || end != word.data() + word.size() || !(std::abs(value) <= kBiasMax)) {
      return Error{ErrorCode::kInvalid,
                   "--bias: \"" + std::string(word) +
                       "\" is no bias; expected an amino acid in one letter and a number from -10000 to 10000, as in "
                       "A:-1.1,F:0.7"};
    }
    biases.emplace_back(word[0], value);
  }
  return biases;
}

}  // namespace lockstep
