#include "runner/models/protein/protein_flags.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/config/flag_table_builder.h"
#include "runner/data/generated_name.h"
#include "runner/models/protein/data/torch_values.h"
#include "runner/models/protein/design/mpnn_task_flags.h"

namespace lockstep {
namespace {

// The peak of the published schedule: 2 · 128^-0.5 · 4000^-0.5.
constexpr double kPublishedLr = 0.00279508497187474;
constexpr int64_t kPublishedWarmup = 4000;
constexpr int64_t kPublishedWidth = 128;

// The published schedule's peak for this width and warm-up. Without --lr it is the peak; a --lr that is given stays.
Result<std::optional<WorkloadFlags::Settled>> settle_protein(FileSystem& /*fs*/, const RunConfig& config) {
  const ProteinOptions& options = options_of<ProteinOptions>(config);
  const TrainingOptions& training = config.training;
  const bool is_published = config.task.name.empty() && options.variant == ProteinVariant::kMpnn &&
                            training.lr_schedule == LrScheduleKind::kNoam && training.warmup_epochs == 0 &&
                            !is_given(config, "lr");
  if (!is_published) return std::optional<WorkloadFlags::Settled>();
  if (options.hidden_dim == kPublishedWidth && training.warmup_steps == kPublishedWarmup) {
    return std::optional<WorkloadFlags::Settled>();  // the default
  }
  const auto width = static_cast<double>(options.hidden_dim);
  const auto warmup = static_cast<double>(std::max<int64_t>(training.warmup_steps, 1));
  const std::string peak = number_text(2.0 / std::sqrt(width * warmup));
  return std::optional(WorkloadFlags::Settled{
      .arguments = {"--lr=" + peak},
      .remark = "--lr is " + peak + ", the published schedule's peak for --hidden_dim " +
                std::to_string(options.hidden_dim) + " and --warmup_steps " + std::to_string(training.warmup_steps)});
}

// The guide's checkpoint_epoch_10.pt was trained for 10 epochs.
Result<int64_t> epochs_of_mdm_weights(const std::string& path) {
  constexpr std::string_view kStart = "checkpoint_epoch_";
  const std::string name = base_name(path);
  if (!name.starts_with(kStart) || !name.ends_with(".pt")) return 0;
  int64_t epochs = 0;
  const std::string_view text = std::string_view(name).substr(kStart.size(), name.size() - kStart.size() - 3);
  if (parse_whole(text, epochs) && epochs >= 0 && epochs <= kCountMax) return epochs;
  return Error{ErrorCode::kInvalid, "--state_dict_path " + path + ": found \"" + std::string(text) +
                                        "\" in the file's name, expected a whole number of epochs, as in "
                                        "checkpoint_epoch_10.pt: rename the file to begin with epoch 1"};
}

// The published files hold the number of neighbours beside the weights; the user has to give the other flags whose
// values are not the defaults. Errors in the file are left to the code that reads its weights later.
Result<std::map<std::string, std::string>> flags_of_mpnn_weights(FileSystem& fs, const RunConfig& given) {
  std::map<std::string, std::string> flags;
  std::error_code is_missing;
  const std::filesystem::path real = std::filesystem::canonical(given.task.checkpoint, is_missing);
  const Result<TorchFile> file = read_torch_dict(fs, real.string());
  if (!file.ok()) return flags;
  const PickleValue* const value = find_value(dict_of(*file), "num_edges");
  const auto* const edges = value == nullptr ? nullptr : std::get_if<int64_t>(&value->value);
  if (edges != nullptr && *edges > 0) flags["num_neighbors"] = std::to_string(*edges);
  return flags;
}

// "/data/structures/" is named "structures"; generated data keeps the whole text, for example "generated:100".
std::string data_name(std::string path) {
  if (is_generated(path)) return path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return base_name(path);
}

std::string needs_mpnn(const RunConfig& config) {
  return options_of<ProteinOptions>(config).variant == ProteinVariant::kMpnn ? "" : "--variant mpnn";
}

std::string needs_mdm(const RunConfig& config) {
  return options_of<ProteinOptions>(config).variant == ProteinVariant::kMdm ? "" : "--variant mdm";
}

std::string needs_random_masks(const RunConfig& config) {
  const bool is_random = options_of<ProteinOptions>(config).mdm.masking_strategy == MaskingStrategy::kRandom;
  return is_random ? needs_mdm(config) : "--masking_strategy random";
}

void add_protein_data_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& path =
      table.text("pdb_path", kMaths, "a file or a folder", &ProteinOptions::pdb_path,
                 "structures: a .pdb or .cif file (also .gz), a folder of them, or generated[:COUNT[:LENGTH]]: "
                 "made in memory (required)");
  path.identity = data_name;
  table.text("cache_dir", kThisProcess, "a folder", &ProteinOptions::cache_dir,
             "where the prepared structures are kept; empty: .lockstep beside --pdb_path; implies --variant mdm unless "
             "--variant is given");
  table.real("val_split", kMaths, 0.0, 1.0, true, &ProteinOptions::val_split, "share of the structures to validate on");
  table.boolean("use_predefined_split", kMaths, &ProteinOptions::use_predefined_split,
                "split the structures by train.txt, val.txt and test.txt in the folder of --pdb_path");
  table.group("Data", needs_mpnn);
  table.integer("max_protein_length", kMaths, 1, 10'000'000,
                field_of(&ProteinOptions::mpnn, &MpnnOptions::max_protein_length),
                "structures of more residues are left out");
  table.integer("num_examples_per_epoch", kMaths, 1, kCountMax,
                field_of(&ProteinOptions::mpnn, &MpnnOptions::num_examples_per_epoch),
                "structures of an epoch, at most");
  table.group("Data");
  table.train_dir_path("save_dir");
}

// Flags of the guide's Python program that decide nothing here. They have no value of their own.
void add_guide_flags(FlagTableBuilder& table) {
  const auto add = [&](const char* name, const char* expects, const char* help) -> Flag& {
    Flag& flag = table.custom(name, kThisProcess, expects, help);
    flag.get = [](const RunConfig&) { return std::string(); };
    return flag;
  };
  Flag& steps = add("num_diffusion_steps", "an integer from 1 to 1000000000", "accepted and without effect");
  steps.set = [](std::string_view text, RunConfig&) {
    int64_t value = 0;
    return text.empty() || (parse_whole(text, value) && value >= 1 && value <= kCountMax);
  };
  steps.needs = [](const RunConfig&) {
    return "masks that grow with the diffusion step; here --mask_ratio is the share at every step";
  };
  add("world_size", "-1: the ranks are those of --nproc and --nnodes, or of WORLD_SIZE", "accepted as -1 alone").set =
      [](std::string_view text, RunConfig&) { return text.empty() || text == "-1"; };
  add("gpu_ids", "the variable in its place: CUDA_VISIBLE_DEVICES=0,1 lockstep run protein …", "refused").set =
      [](std::string_view text, RunConfig&) { return text.empty(); };
}

void add_protein_model_flags(FlagTableBuilder& table) {
  table.group("Model");
  table.choice("variant", kMaths, {"mpnn", "mdm"}, &ProteinOptions::variant,
               "the model: ProteinMPNN, or the guide's masked side-chain model");
  table.integer("hidden_dim", kMaths, 1, kWidthMax, &ProteinOptions::hidden_dim, "width");
  table.integer("num_encoder_layers", kMaths, 1, 1024, &ProteinOptions::num_encoder_layers, "layers of the encoder");
  table.integer("num_decoder_layers", kMaths, 1, 1024, &ProteinOptions::num_decoder_layers, "layers of the decoder");
  table.real("dropout", kMaths, 0.0, 1.0, true, &ProteinOptions::dropout, "dropout probability");

  table.group("ProteinMPNN (--variant mpnn)", needs_mpnn);
  table.integer("num_neighbors", kMaths, 1, 4096, field_of(&ProteinOptions::mpnn, &MpnnOptions::num_neighbors),
                "nearest residues that each one looks at");
  table.real("backbone_noise", kMaths, 0.0, 100.0, false, field_of(&ProteinOptions::mpnn, &MpnnOptions::backbone_noise),
             "deviation of the noise on the coordinates while training, in angstroms");
  table.real("label_smoothing", kMaths, 0.0, 1.0, true, field_of(&ProteinOptions::mpnn, &MpnnOptions::label_smoothing),
             "share of each label that is spread over all amino acids");
  table.choice("loss_norm", kMaths, {"constant", "tokens"}, field_of(&ProteinOptions::mpnn, &MpnnOptions::loss_norm),
               "the loss of a step is divided by 2000, as published, or by the residues that are learnt from");
  // The same value as --batch_size, under another name because it counts residues.
  table.integer(
      "batch_tokens", kMaths, 1, kCountMax, [](auto& config) -> auto& { return config.training.batch_size; },
      "residues of a step over all ranks, padding counted");

  table.group("Masked side chains (--variant mdm)", needs_mdm);
  table.integer("num_heads", kMaths, 1, kWidthMax, field_of(&ProteinOptions::mdm, &MdmOptions::num_heads),
                "attention heads; --hidden_dim is divisible by them");
  table.choice("masking_strategy", kMaths, {"random", "block"},
               field_of(&ProteinOptions::mdm, &MdmOptions::masking_strategy),
               "which fragments of a structure are hidden: --mask_ratio of them, or three runs of five");
  table
      .real("mask_ratio", kMaths, 0.0, 1.0, false, field_of(&ProteinOptions::mdm, &MdmOptions::mask_ratio),
            "share of a structure's fragments that is hidden, one at least")
      .needs = needs_random_masks;
  add_guide_flags(table);
}

void set_protein_defaults(RunConfig& config) {
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

// Rejects flags that the variant does not have, and values of its own flags that contradict each other.
Status check_variant(const RunConfig& config) {
  const ProteinOptions& options = options_of<ProteinOptions>(config);
  if (options.variant == ProteinVariant::kMpnn) {
    if (is_given(config, "batch_size")) {
      return invalid(
          "--batch_size counts structures, and --variant mpnn packs its batches by residues: give "
          "--batch_tokens");
    }
    if (config.training.batch_scope == BatchScope::kPerDevice) {
      return invalid(
          "--batch_scope per_device does not go with --batch_tokens, which counts the residues of all ranks");
    }
    const LaunchOptions& launch = config.launch;
    const int64_t ranks = int64_t{launch.nproc.value_or(1)} * launch.nnodes.value_or(1);
    if (config.training.batch_size < ranks) {
      return invalid("--batch_tokens " + std::to_string(config.training.batch_size) + " is fewer than the " +
                     std::to_string(ranks) + " ranks that share them: raise it");
    }
    for (const char* name : {"num_heads", "mask_ratio", "masking_strategy", "num_diffusion_steps"}) {
      if (is_given(config, name)) {
        return invalid(std::string("--") + name + " is a flag of --variant mdm, and this run is of --variant mpnn");
      }
    }
    return {};
  }
  if (is_given(config, "batch_tokens")) {
    return invalid(
        "--batch_tokens counts residues, and --variant mdm takes its batches by structures: give --batch_size");
  }
  for (const char* name : {"num_neighbors", "backbone_noise", "label_smoothing", "loss_norm", "max_protein_length",
                           "num_examples_per_epoch"}) {
    if (is_given(config, name)) {
      return invalid(std::string("--") + name +
                     " is a flag of --variant mpnn, and this run is of --variant mdm (which --mask_ratio and "
                     "--cache_dir mean when no --variant is given)");
    }
  }
  if (options.hidden_dim % 2 != 0 || options.hidden_dim % options.mdm.num_heads != 0) {
    return invalid("--hidden_dim " + std::to_string(options.hidden_dim) +
                   ": expected an even number that is divisible by --num_heads " +
                   std::to_string(options.mdm.num_heads));
  }
  return {};
}

Status check_protein(const RunConfig& config) {
  const ProteinOptions& options = options_of<ProteinOptions>(config);
  if (options.pdb_path.empty()) {
    return invalid("--pdb_path is required: a file or a folder of structures, or generated");
  }
  if (is_given(config, "save_dir") && is_given(config, "train_dir")) {
    return invalid("--save_dir and --train_dir set the same folder: give only one of them");
  }
  return check_variant(config);
}

// "mdm" holds the guide's own values.
std::vector<Preset> protein_presets() {
  return {{.name = "mpnn", .summary = "ProteinMPNN as published: the defaults above", .values = {}},
          {.name = "mdm",
           .summary = "the guide's masked side-chain model (also where --mask_ratio or --cache_dir is given):",
           .values = {{"batch_size", "8"},
                      {"batch_scope", "per_device"},
                      {"num_epochs", "50"},
                      {"hidden_dim", "256"},
                      {"optimizer", "adamw"},
                      {"lr", "1e-04"},
                      {"lr_schedule", "plateau"},
                      {"warmup_steps", "0"},
                      {"plateau_factor", "0.5"},
                      {"plateau_patience", "5"},
                      {"adam_beta2", "0.999"},
                      {"adam_eps", "1e-08"},
                      {"weight_decay", "1e-05"},
                      {"clip_grad_norm", "1"},
                      {"early_stop_patience", "30"},
                      {"early_stop_min_delta", "0.001"}}}};
}

WorkloadDemo protein_demo() {
  return {.arguments = {"--num_epochs", "25", "--batch_tokens", "1500", "--max_protein_length", "600", "--hidden_dim",
                        "64", "--num_encoder_layers", "2", "--num_decoder_layers", "2", "--num_neighbors", "24", "--lr",
                        "0.003", "--warmup_steps", "60"},
          .data_title = "real structures",
          .data_file = "structures",
          .data_flag = "pdb_path",
          .generated = "generated",
          .how_to_get_data =
              "To fetch about thirty from the Protein Data Bank, in the repository:\n"
              "  scripts/get_structures",
          .task = {"design", "--only", "FOLDER/held_out.txt", "--num_sequences", "4", "--out", "FOLDER/designs.fa"},
          .more = {}};
}

}  // namespace

WorkloadFlags protein_flags() {
  return {.name = "protein",
          .summary = "ProteinMPNN: sequences that fold into a backbone; masked side chains",
          .data = "structures: PDB or mmCIF files",
          .example = "lockstep run protein --pdb_path structures --nproc 2",
          .demo = protein_demo(),
          .bench_arguments = {},
          .set_defaults = set_protein_defaults,
          .add_flags =
              [](FlagTableBuilder& table) {
                add_protein_data_flags(table);
                add_protein_model_flags(table);
              },
          .presets = protein_presets(),
          .preset_flag = "variant",
          .presets_by_flag = {{"mask_ratio", "mdm"}, {"cache_dir", "mdm"}},
          .check = check_protein,
          .data_name = [](const RunConfig& config) { return data_name(options_of<ProteinOptions>(config).pdb_path); },
          .epochs_of_weights = epochs_of_mdm_weights,
          .tasks = {mpnn_score_task(), mpnn_design_task()},
          .flags_of_weight_file = flags_of_mpnn_weights,
          .settle = settle_protein};
}

}  // namespace lockstep
