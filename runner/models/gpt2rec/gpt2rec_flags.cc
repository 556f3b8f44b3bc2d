#include "runner/models/gpt2rec/gpt2rec_flags.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "runner/config/flag_table_builder.h"
#include "runner/data/dataset.h"
#include "runner/models/gpt2rec/recommend_films_flags.h"

namespace lockstep {
namespace {

constexpr char kOnePhase[] = "one_phase";
constexpr char kTwoPhase[] = "two_phase";

bool has_two_phases(const RunConfig& config) { return config.preset == kTwoPhase; }

std::string needs_two_phases(const RunConfig& config) { return has_two_phases(config) ? "" : "--preset two_phase"; }

std::string needs_one_phase(const RunConfig& config) { return has_two_phases(config) ? "--preset one_phase" : ""; }

std::string needs_adapters(const RunConfig& config) {
  const std::vector<RecommenderPhase> phases = recommender_phases(config);
  const bool trains = std::any_of(phases.begin(), phases.end(), [](const auto& phase) { return !phase.is_cached; });
  return trains ? "" : has_two_phases(config) ? "--phase2_cache false" : "--use_cache false";
}

// Three numbers with commas between them.
bool parse_ratio(std::string_view text, SplitRatio& ratio) {
  std::array<double, 3> fractions{};
  for (size_t i = 0; i < fractions.size(); ++i) {
    const bool is_last = i + 1 == fractions.size();
    const size_t end = is_last ? text.size() : text.find(',');
    if (end == std::string_view::npos) return false;
    if (!parse_whole(text.substr(0, end), fractions[i]) || !(fractions[i] >= 0.0 && fractions[i] <= 1.0)) return false;
    text.remove_prefix(is_last ? end : end + 1);
  }
  constexpr double kRounding = 1e-6;
  // The validation decides which weights are kept.
  if (fractions[0] <= 0.0 || fractions[1] <= 0.0 ||
      std::fabs(fractions[0] + fractions[1] + fractions[2] - 1.0) > kRounding)
    return false;
  ratio = {.train = fractions[0], .valid = fractions[1], .test = fractions[2]};
  return true;
}

void add_gpt2rec_data_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& path = table.text("data_path", kMaths, "a folder or a file", &Gpt2recOptions::data_path,
                          "ratings with users and films: a folder as MovieLens-1M, MovieLens-100K or RecBole have one; "
                          "generated: made in memory (required)");
  path.identity = dataset_name;
  Flag& ratio =
      table.custom("split_ratio", kMaths, "three numbers that sum to 1, the first two above 0, as 0.8,0.1,0.1",
                   "shares of the ratings that train, validate and test");
  ratio.set = [](std::string_view text, RunConfig& config) {
    return parse_ratio(text, options_of<Gpt2recOptions>(config).split_ratio);
  };
  ratio.get = [](const RunConfig& config) {
    const SplitRatio& fractions = options_of<Gpt2recOptions>(config).split_ratio;
    return number_text(fractions.train) + "," + number_text(fractions.valid) + "," + number_text(fractions.test);
  };
  table.choice("neg", kMaths, {"static", "resample"}, &Gpt2recOptions::negatives,
               "the film that each rating is compared with is drawn once, or anew in each epoch");
  table.integer("num_negatives", kMaths, 1, 1024, &Gpt2recOptions::num_negatives,
                "films that each rating is compared with; those with higher scores weigh more in the loss");
}

void add_gpt2_flags(FlagTableBuilder& table) {
  table.group("GPT-2");
  Flag& path =
      table.text("gpt2_path", kMaths, "a folder", &Gpt2recOptions::gpt2_path,
                 "GPT-2 in Hugging Face's layout: config.json, model.safetensors, the tokenizer's files; empty: a "
                 "small random one (--gpt2_config)");
  path.identity = [](const std::string& value) { return value.empty() ? value : dataset_name(value); };
  Flag& tokenizer = table.text(
      "tokenizer_path", kMaths, "a folder", &Gpt2recOptions::tokenizer_path,
      "folder of vocab.json and merges.txt, or tokenizer.json; empty: --gpt2_path, or else bytes are tokens");
  tokenizer.identity = path.identity;
  Flag& size = table.custom("gpt2_config", kMaths, "LAYERSxWIDTH, as 2x64, or auto",
                            "size of a random GPT-2, or the size that --gpt2_path must have; auto: any, or 2x64");
  size.set = [](std::string_view text, RunConfig& config) {
    std::optional<Gpt2Size>& value = options_of<Gpt2recOptions>(config).gpt2_config;
    Gpt2Size given;
    const size_t x = text.find('x');
    if (text == "auto") return value.reset(), true;
    if (x == std::string_view::npos || !parse_whole(text.substr(0, x), given.num_layers)) return false;
    if (!parse_whole(text.substr(x + 1), given.width)) return false;
    if (given.num_layers < 1 || given.num_layers > 1024 || given.width < 1 || given.width > kWidthMax) return false;
    // There is one attention head for each 64 of the width.
    if (given.width > 64 && given.width % 64 != 0) return false;
    value = given;
    return true;
  };
  size.get = [](const RunConfig& config) {
    const std::optional<Gpt2Size>& value = options_of<Gpt2recOptions>(config).gpt2_config;
    return value ? std::to_string(value->num_layers) + "x" + std::to_string(value->width) : std::string("auto");
  };
  table.integer("max_length", kMaths, 1, 1024, &Gpt2recOptions::max_length, "tokens of a text; longer texts are cut");
  table.choice("pool", kMaths, {"mean", "padded"}, &Gpt2recOptions::pool,
               "a text's vector is the mean over its tokens; padded: over the padding too, as in the guide");
  table.integer("lora_rank", kMaths, 1, 1024, &Gpt2recOptions::lora_rank, "LoRA: rank of the adapters");
  table.real("lora_alpha", kMaths, 0.0, 1e6, false, &Gpt2recOptions::lora_alpha,
             "LoRA: adapters are scaled by this / rank");
  table.real("lora_dropout", kMaths, 0.0, 1.0, true, &Gpt2recOptions::lora_dropout, "LoRA: dropout probability").needs =
      needs_adapters;
}

void add_gpt2rec_model_flags(FlagTableBuilder& table) {
  table.group("Model");
  table.integer("embed_dim", kMaths, 1, kWidthMax, &Gpt2recOptions::embed_dim,
                "width of the embeddings of ids and of texts");
  table.boolean("use_attention", kMaths, &Gpt2recOptions::use_attention,
                "fuse the embeddings of id and text; false: concatenate them");
  table.real("dropout", kMaths, 0.0, 1.0, true, &Gpt2recOptions::dropout, "dropout probability of the score network");
}

void add_phase_flags(FlagTableBuilder& table) {
  table.group("Phases");
  table
      .boolean("use_cache", kMaths, &Gpt2recOptions::use_cache,
               "encode all texts once, GPT-2 stays as it is; false: encode each batch's texts and train LoRA")
      .needs = needs_one_phase;
  table
      .real("gpt2_lr_factor", kMaths, 0.0, 1e6, false, &Gpt2recOptions::gpt2_lr_factor,
            "learning rate of LoRA's weights, as a multiple of the step's")
      .needs = needs_adapters;
  table.group("Phases", needs_two_phases);
  const auto phase1 = [](auto member) { return field_of(&Gpt2recOptions::phase1, member); };
  const auto phase2 = [](auto member) { return field_of(&Gpt2recOptions::phase2, member); };
  table.integer("phase1_epochs", kMaths, 1, kCountMax, phase1(&PhaseOptions::num_epochs),
                "epochs of the first phase, with cached texts");
  table.integer("phase2_epochs", kAllRanks, 1, kCountMax, phase2(&PhaseOptions::num_epochs),
                "epochs of the second phase, which trains LoRA");
  table.real("phase1_lr", kMaths, 0.0, 1e6, false, phase1(&PhaseOptions::lr), "learning rate of the first phase");
  table.real("phase2_lr", kMaths, 0.0, 1e6, false, phase2(&PhaseOptions::lr), "learning rate of the second phase");
  table.real("phase1_clip_grad_norm", kMaths, 0.0, 1e9, false, phase1(&PhaseOptions::clip_grad_norm),
             "largest gradient norm in the first phase; 0: off");
  table.real("phase2_clip_grad_norm", kMaths, 0.0, 1e9, false, phase2(&PhaseOptions::clip_grad_norm),
             "largest gradient norm in the second phase; 0: off");
  table.boolean("phase2_cache", kMaths, &Gpt2recOptions::phase2_cache,
                "cache the texts in the second phase, too, as in the guide, and do not train LoRA");
}

void add_output_flags(FlagTableBuilder& table) {
  table.group("Results");
  table.boolean("valid_seen", kMaths, &Gpt2recOptions::valid_seen,
                "a user's training films are candidates in the validation, too, as in the guide");
  table.boolean("save_model", kAllRanks, &Gpt2recOptions::save_model, "keep the best weights as --model_path");
  Flag& path = table.text("model_path", kAllRanks, "a file's name that ends in .pth or .pt, in the run's folder",
                          &Gpt2recOptions::model_path, "the best weights, for torch.load");
  path.set = [](std::string_view text, RunConfig& config) {
    const bool is_torch = text.ends_with(".pth") || text.ends_with(".pt");
    if (!is_torch || text.starts_with('.') || text.find_first_of(std::string_view("/\n\r\0", 4)) != text.npos) {
      return false;
    }
    options_of<Gpt2recOptions>(config).model_path = std::string(text);
    return true;
  };
  path.needs = [](const RunConfig& config) {
    return options_of<Gpt2recOptions>(config).save_model ? std::string() : std::string("--save_model");
  };
}

// The guide's own values.
void set_gpt2rec_defaults(RunConfig& config) {
  config.options = Gpt2recOptions{};
  TrainingOptions& training = config.training;
  training.num_epochs = 50;
  training.batch_size = 2048;
  training.batch_scope = BatchScope::kPerDevice;
  training.lr = 1e-3;
  training.adam_beta2 = 0.999;
  training.clip_grad_norm = 1.0;
  training.lr_schedule = LrScheduleKind::kPlateau;  // on the mean training loss
  training.plateau_factor = 0.5;
  training.plateau_patience = 3;
  training.min_lr = 1e-6;
  training.max_skipped_steps = 0;
  training.eval_every = 1;
  training.early_stop_patience = 10;
}

Status check_gpt2rec(const RunConfig& config) {
  const Gpt2recOptions& options = options_of<Gpt2recOptions>(config);
  if (options.data_path.empty()) {
    return invalid("--data_path is required: a folder with MovieLens-1M or MovieLens-100K, or generated");
  }
  if (has_two_phases(config)) {
    for (const auto& [one, two] : {std::pair("num_epochs", "--phase1_epochs and --phase2_epochs"),
                                   std::pair("lr", "--phase1_lr and --phase2_lr"),
                                   std::pair("clip_grad_norm", "--phase1_clip_grad_norm and --phase2_clip_grad_norm"),
                                   std::pair("use_cache", "--phase2_cache")}) {
      if (!is_given(config, one)) continue;
      return invalid(std::string("--") + one +
                     " has no effect on a run of two phases (--phase1_epochs, --phase2_epochs or --preset two_phase): "
                     "give " +
                     two + " instead, or leave the flags of phases out");
    }
    return {};
  }
  for (const char* const flag : {"phase1_epochs", "phase2_epochs", "phase1_lr", "phase2_lr", "phase1_clip_grad_norm",
                                 "phase2_clip_grad_norm", "phase2_cache"}) {
    if (!is_given(config, flag)) continue;
    return invalid(std::string("--") + flag + " has no effect on a run of one phase: add --preset two_phase");
  }
  return {};
}

std::vector<Preset> gpt2rec_presets() {
  return {{.name = kOnePhase, .summary = "the guide's example: the defaults above", .values = {}},
          {.name = kTwoPhase,
           .summary = "the guide's recipe (also where --phase1_epochs or --phase2_epochs is given):",
           .values = {{"phase1_epochs", "15"},
                      {"phase1_lr", "1e-04"},
                      {"phase1_clip_grad_norm", "1"},
                      {"phase2_epochs", "30"},
                      {"phase2_lr", "5e-05"},
                      {"phase2_clip_grad_norm", "0.5"},
                      {"optimizer", "adamw"},
                      {"weight_decay", "1e-05"}}}};
}

// In the guide, --device cuda means a GPU if there is one, and otherwise the CPU.
Result<std::optional<WorkloadFlags::Settled>> settle_device(FileSystem& /*fs*/, const RunConfig& config) {
  if (config.launch.device != DeviceChoice::kCuda) return std::optional<WorkloadFlags::Settled>();
  return std::optional(
      WorkloadFlags::Settled{.arguments = {"--device=auto"},
                             .remark = "--device cuda means auto here, as in the guide: without a GPU it is the CPU"});
}

WorkloadDemo gpt2rec_demo() {
  return {.arguments = {"--num_epochs", "20", "--batch_scope", "total", "--batch_size", "1024", "--lr", "0.002",
                        "--neg", "resample", "--eval_every", "4"},
          .data_title = "MovieLens-100K",
          .data_file = "ml-100k.item",
          .data_flag = "data_path",
          .generated = "generated",
          .how_to_get_data =
              "Its licence forbids passing it on. To fetch it, in the repository:\n"
              "  scripts/get_ml100k",
          .more = {{"the same with GPT-2's adapters trained", "--use_cache false --num_epochs 2"}}};
}

}  // namespace

WorkloadFlags gpt2rec_flags() {
  return {
      .name = "gpt2rec",
      .summary = "films for users, from ids and from texts that GPT-2 reads",
      .data = "ratings with users and films: MovieLens-1M, MovieLens-100K",
      .example = "lockstep run gpt2rec --data_path ml-1m --gpt2_path gpt2 --nproc 2",
      .demo = gpt2rec_demo(),
      .bench_arguments = {},
      .set_defaults = set_gpt2rec_defaults,
      .add_flags =
          [](FlagTableBuilder& table) {
            add_gpt2rec_data_flags(table);
            add_gpt2_flags(table);
            add_gpt2rec_model_flags(table);
            add_phase_flags(table);
            add_output_flags(table);
          },
      .presets = gpt2rec_presets(),
      .presets_by_flag = {{"phase1_epochs", kTwoPhase}, {"phase2_epochs", kTwoPhase}},
      .check = check_gpt2rec,
      .data_name = [](const RunConfig& config) { return dataset_name(options_of<Gpt2recOptions>(config).data_path); },
      .tasks = {recommend_films_task()},
      .flags_of_weight_file = {},
      .settle = settle_device};
}

std::vector<RecommenderPhase> recommender_phases(const RunConfig& config) {
  const Gpt2recOptions& options = options_of<Gpt2recOptions>(config);
  const auto phase = [](const char* name, const char* epochs_flag, const PhaseOptions& of_phase, bool is_cached) {
    return RecommenderPhase{.name = name,
                            .num_epochs = of_phase.num_epochs,
                            .epochs_flag = epochs_flag,
                            .lr = of_phase.lr,
                            .clip_grad_norm = of_phase.clip_grad_norm,
                            .is_cached = is_cached};
  };
  if (has_two_phases(config)) {
    return {phase("phase 1", "phase1_epochs", options.phase1, true),
            phase("phase 2", "phase2_epochs", options.phase2, options.phase2_cache)};
  }
  const TrainingOptions& training = config.training;
  return {phase("training", "num_epochs",
                {.num_epochs = training.num_epochs, .lr = training.lr, .clip_grad_norm = training.clip_grad_norm},
                options.use_cache)};
}

}  // namespace lockstep
