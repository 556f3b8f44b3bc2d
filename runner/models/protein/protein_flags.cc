#include "runner/models/protein/protein_flags.h"

#include <any>
#include <filesystem>
#include <string>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/config/flag_table_builder.h"
#include "runner/models/protein/mpnn_task_flags.h"

namespace lockstep {
namespace {

constexpr FlagScope kThisProcess = FlagScope::kThisProcess;
constexpr FlagScope kMaths = FlagScope::kMaths;

constexpr std::string_view kGenerated = "generated";

// The peak of the published schedule: 2 · 128^-0.5 · 4000^-0.5.
constexpr double kPublishedLr = 0.00279508497187474;
constexpr int64_t kPublishedWarmup = 4000;

bool is_generated(std::string_view path) {
  return path == kGenerated || path.starts_with(std::string(kGenerated) + ":");
}

// "/data/structures/" is "structures"; what is generated is named by what was asked for.
std::string data_name(std::string path) {
  if (is_generated(path)) return path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return base_name(path);
}

// `OPTION(val_split)` is a function from a config to that option, const or not.
#define OPTION(member) \
  [](auto& config) -> auto& { return protein_options(config).member; }

void add_data_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& path =
      table.text("pdb_path", kMaths, "a file or a folder", OPTION(pdb_path),
                 "structures: a .pdb or .cif file (also .gz), a folder of them, or generated[:COUNT[:LENGTH]]: "
                 "made in memory (required)");
  path.names_path = NamesPath::kFile;
  path.identity = data_name;
  table
      .text("cache_dir", kThisProcess, "a folder", OPTION(cache_dir),
            "where the prepared structures are kept; empty: .lockstep beside --pdb_path")
      .names_path = NamesPath::kFolder;
  table.real("val_split", kMaths, 0.0, 1.0, true, OPTION(val_split), "share of the structures that validates");
  table.integer("max_protein_length", kMaths, 1, 10'000'000, OPTION(mpnn.max_protein_length),
                "structures of more residues are left out");
  table.integer("num_examples_per_epoch", kMaths, 1, kCountMax, OPTION(mpnn.num_examples_per_epoch),
                "structures of an epoch, at most");
}

void add_model_flags(FlagTableBuilder& table) {
  table.group("Model");
  table.choice("variant", kMaths, {"mpnn"}, OPTION(variant), "the model: ProteinMPNN");
  table.integer("hidden_dim", kMaths, 1, kWidthMax, OPTION(mpnn.hidden_dim), "width");
  table.integer("num_encoder_layers", kMaths, 1, 1024, OPTION(mpnn.num_encoder_layers), "layers of the encoder");
  table.integer("num_decoder_layers", kMaths, 1, 1024, OPTION(mpnn.num_decoder_layers), "layers of the decoder");
  table.integer("num_neighbors", kMaths, 1, 4096, OPTION(mpnn.num_neighbors),
                "nearest residues that each one looks at");
  table.real("dropout", kMaths, 0.0, 1.0, true, OPTION(mpnn.dropout), "dropout probability");
  table.real("backbone_noise", kMaths, 0.0, 100.0, false, OPTION(mpnn.backbone_noise),
             "deviation of the noise on the coordinates while training, in angstroms");
  table.real("label_smoothing", kMaths, 0.0, 1.0, true, OPTION(mpnn.label_smoothing),
             "share of each label that is spread over all amino acids");
  table.choice("loss_norm", kMaths, {"constant", "tokens"}, OPTION(mpnn.loss_norm),
               "the loss of a step is divided by 2000, as published, or by the residues that are learnt from");
  // The batch is counted in residues: one value, under its own name.
  table.integer(
      "batch_tokens", kMaths, 1, kCountMax, [](auto& config) -> auto& { return config.training.batch_size; },
      "residues of a step over all ranks, padding counted");
}

#undef OPTION

void set_defaults(RunConfig& config) {
  config.options = ProteinOptions{};
  TrainingOptions& training = config.training;
  training.batch_size = 10'000;
  training.num_epochs = 200;
  training.eval_every = 1;
  training.lr = kPublishedLr;
  training.lr_schedule = LrScheduleKind::kNoam;
  training.warmup_steps = kPublishedWarmup;
  training.adam_beta1 = 0.9;
  training.adam_beta2 = 0.98;
  training.adam_eps = 1e-9;
}

Status check(const RunConfig& config) {
  const ProteinOptions& options = protein_options(config);
  const auto invalid = [](std::string message) { return Error{ErrorCode::kInvalid, std::move(message)}; };
  if (options.pdb_path.empty()) {
    return invalid("--pdb_path is required: a file or a folder of structures, or generated");
  }
  if (is_given(config, "batch_size")) {
    return invalid(
        "--batch_size counts structures, and --variant mpnn packs its batches by residues: give "
        "--batch_tokens");
  }
  return {};
}

WorkloadDemo demo() {
  return {.arguments = {"--num_epochs", "25", "--batch_tokens", "1500", "--max_protein_length", "600", "--hidden_dim",
                        "64", "--num_encoder_layers", "2", "--num_decoder_layers", "2", "--num_neighbors", "24", "--lr",
                        "0.003", "--warmup_steps", "60"},
          .data_title = "real structures",
          .data_file = "structures",
          .data_flag = "pdb_path",
          .generated = std::string(kGenerated),
          .how_to_get_data =
              "Forty structures from the tests of public packages:\n"
              "  scripts/get_structures data/structures",
          .more = {}};
}

}  // namespace

WorkloadFlags protein_flags() {
  return {.name = "protein",
          .summary = "ProteinMPNN: the sequence that folds into a backbone",
          .data = "structures: PDB or mmCIF files",
          .example = "lockstep run protein --pdb_path structures --nproc 2",
          .demo = demo(),
          .bench_arguments = {},
          .set_defaults = set_defaults,
          .add_flags =
              [](FlagTableBuilder& table) {
                add_data_flags(table);
                add_model_flags(table);
              },
          .check = check,
          .data_name = [](const RunConfig& config) { return data_name(protein_options(config).pdb_path); },
          .tasks = {mpnn_score_task(), mpnn_design_task()},
          // The published weights have the default shape; of others the flags are to be given.
          .flags_of_weight_file = [](const RunConfig& /*given*/) -> Result<std::map<std::string, std::string>> {
            return std::map<std::string, std::string>();
          },
          .settle = {}};
}

std::string cache_folder_of(const ProteinOptions& options) {
  if (!options.cache_dir.empty() || is_generated(options.pdb_path)) return options.cache_dir;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(options.pdb_path, ignored);
  return join_path(is_folder ? options.pdb_path : parent_path(options.pdb_path), ".lockstep");
}

const ProteinOptions& protein_options(const RunConfig& config) {
  return std::any_cast<const ProteinOptions&>(config.options);
}

ProteinOptions& protein_options(RunConfig& config) { return std::any_cast<ProteinOptions&>(config.options); }

}  // namespace lockstep
