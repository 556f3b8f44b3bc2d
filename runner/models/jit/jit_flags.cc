#include "runner/models/jit/jit_flags.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "runner/base/file_system.h"
#include "runner/config/flag_table_builder.h"
#include "runner/data/dataset.h"
#include "runner/data/generated_name.h"
#include "runner/models/jit/data/data_format.h"
#include "runner/models/jit/sample_flags.h"

namespace lockstep {
namespace {

constexpr int64_t kHeadDim = 64;

// Table 7 of the paper.
const std::array<JitSize, 3> kPublishedSizes = {
    JitSize{.name = "B", .depth = 12, .hidden_dim = 768, .num_heads = 12, .bottleneck = 128, .in_context_start = 4},
    JitSize{.name = "L", .depth = 24, .hidden_dim = 1024, .num_heads = 16, .bottleneck = 128, .in_context_start = 8},
    JitSize{.name = "H", .depth = 32, .hidden_dim = 1280, .num_heads = 16, .bottleneck = 256, .in_context_start = 10}};

// Reads "JiT-B/4", or "6x192/4": the depth and width of a smaller model, and the side of a patch in pixels.
bool parse_size(std::string_view text, JitSize& size) {
  const size_t slash = text.find('/');
  int64_t patch = 0;
  if (slash == std::string_view::npos || !parse_whole(text.substr(slash + 1), patch) || patch < 1) return false;
  const std::string_view form = text.substr(0, slash);
  JitSize parsed;
  if (form.starts_with("JiT-")) {
    const auto published = std::find_if(kPublishedSizes.begin(), kPublishedSizes.end(),
                                        [&](const JitSize& one) { return one.name == form.substr(4); });
    if (published == kPublishedSizes.end()) return false;
    parsed = *published;
  } else {
    const size_t x = form.find('x');
    if (x == std::string_view::npos || !parse_whole(form.substr(0, x), parsed.depth)) return false;
    if (!parse_whole(form.substr(x + 1), parsed.hidden_dim)) return false;
    const bool in_range = parsed.depth >= 1 && parsed.depth <= 1024 && parsed.hidden_dim >= kHeadDim &&
                          parsed.hidden_dim <= kWidthMax && parsed.hidden_dim % kHeadDim == 0;
    if (!in_range) return false;
    parsed.num_heads = parsed.hidden_dim / kHeadDim;
    parsed.bottleneck = std::min<int64_t>(parsed.hidden_dim / 2, 128);
    parsed.in_context_start = parsed.depth / 3;
  }
  parsed.name = std::string(text);
  parsed.patch_size = patch;
  size = parsed;
  return true;
}

std::string needs_images(const RunConfig& config) {
  return options_of<JitOptions>(config).data_format == JitData::kTokens ? "--data_format images" : "";
}

std::string needs_tokens(const RunConfig& config) {
  return options_of<JitOptions>(config).data_format == JitData::kTokens ? "" : "--data_format tokens";
}

void add_jit_data_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& path = table.text(
      "data_path", kMaths, "a folder", &JitOptions::data_path,
      "JPEG and PNG files, in a folder for each class or in one, or texts; generated[:COUNT[:CLASSES]]: made "
      "in memory (required)");
  path.identity = dataset_name;
  table
      .choice("data_format", kMaths, {"auto", "images", "tokens"}, &JitOptions::data_format,
              "images; texts as images of tokens (.txt: a text in each line, .json: a list of texts), with the guide's "
              "model for them; auto: by what --data_path holds")
      .identity = [](const std::string& value) { return value == "auto" ? std::string("images") : value; };
  Flag& tokenizer = table.text("tokenizer_path", kMaths, "a folder", &JitOptions::tokenizer_path,
                               "tokenizer of GPT-2 or Qwen2: vocab.json and merges.txt, or tokenizer.json; empty: "
                               "bytes are tokens");
  tokenizer.identity = dataset_name;
  tokenizer.needs = needs_tokens;
  table
      .optional_integer("max_tokens", kMaths, 1, kCountMax, &JitOptions::max_tokens,
                        "tokens of a text, the last of which ends it; auto: as many as an image has pixels")
      .needs = needs_tokens;
  table.text("cache_dir", kThisProcess, "a folder", &JitOptions::cache_dir,
             "where the prepared images are kept; empty: .lockstep in --data_path");
  table.integer("img_size", kMaths, 4, 4096, &JitOptions::image_size, "side of the images in pixels").aliases = {
      "image_size"};
  table.boolean("flip", kMaths, &JitOptions::flip, "mirror half of the training images, drawn anew in each epoch")
      .needs = needs_images;
  table.integer("valid_images", kMaths, 0, kCountMax, &JitOptions::valid_images,
                "images to validate on, at most a tenth of all; 0: none, some of the training images are used");
}

void add_jit_model_flags(FlagTableBuilder& table) {
  table.group("Model");
  Flag& model =
      table.custom("model", kMaths,
                   "JiT-B/4, JiT-L/4, JiT-H/4, or DEPTHxWIDTH/PATCH as 6x192/4, with a WIDTH that is a multiple of 64",
                   "the published sizes, or a smaller one, and the side of a patch in pixels");
  model.set = [](std::string_view text, RunConfig& config) {
    return parse_size(text, options_of<JitOptions>(config).model);
  };
  model.get = [](const RunConfig& config) { return options_of<JitOptions>(config).model.name; };
  table.group("Model", needs_images);
  table.real("dropout", kMaths, 0.0, 1.0, true, &JitOptions::dropout,
             "dropout probability in the middle half of the blocks");

  table.group("Diffusion", needs_images);
  table.real("label_drop_prob", kMaths, 0.0, 1.0, false, &JitOptions::class_dropout,
             "probability that a training image is shown without its class, for guidance");
  table.real("P_mean", kMaths, -100.0, 100.0, false, &JitOptions::t_mean,
             "mean of the logit of a time, which is drawn from a normal distribution");
  table.real("P_std", kMaths, 0.0, 100.0, false, &JitOptions::t_deviation, "standard deviation of that logit");
  table.real("noise_scale", kMaths, 0.0, 1000.0, false, &JitOptions::noise_scale, "standard deviation of the noise");
  table.real("t_eps", kMaths, 0.0, 1.0, true, &JitOptions::t_eps, "the loss divides by no less than this");
  table.group("Diffusion");
  // Sets the same value as --lr, and its scaling with the batch.
  Flag& blr = table.custom("blr", kMaths, "a number of at least 0",
                           "learning rate for a global batch of 256; --lr is taken as it is");
  blr.set = [](std::string_view text, RunConfig& config) {
    double value = 0.0;
    if (!parse_whole(text, value) || !(value >= 0.0) || !std::isfinite(value)) return false;
    config.training.lr = value;
    config.training.lr_scaling = LrScaling::kBatch;
    return true;
  };
  blr.get = [](const RunConfig& config) {
    return config.training.lr_scaling == LrScaling::kBatch ? number_text(config.training.lr) : std::string();
  };

  table.group("Files");
  table.train_dir_path("output_dir");
  table.integer("save_interval", kAllRanks, 1, kCountMax, &JitOptions::save_interval,
                "epochs between the files checkpoint_epoch_N.pth, which are written after evaluations");

  table.group("Samples", needs_images);
  table.integer("sample_images", kAllRanks, 0, 1024, &JitOptions::sample_images,
                "images of fixed noise that each evaluation makes, in one picture; 0: none");
  table.integer("sample_steps", kThisProcess, 1, 10000, &JitOptions::sample_steps, "steps of Heun's method for each");
  table.real("cfg", kThisProcess, 0.0, 1000.0, false, &JitOptions::guidance, "classifier-free guidance; 1: none");
}

// The published recipe, except that the warm-up suits a short run and that --lr is used as it is (published is a rate
// for a batch of 256).
void set_jit_defaults(RunConfig& config) {
  config.options = JitOptions{};
  TrainingOptions& training = config.training;
  training.num_epochs = 100;
  training.batch_size = 64;
  training.batch_scope = BatchScope::kPerDevice;
  training.lr = 1e-4;
  training.lr_schedule = LrScheduleKind::kConstant;
  training.warmup_epochs = 5;
  training.optimizer = OptimizerKind::kAdamw;
  training.adam_beta1 = 0.9;
  training.adam_beta2 = 0.95;
  training.weight_decay = 0.0;
  training.ema_decays = {0.9999, 0.9996};
  training.use_amp = true;
  training.wandb.project = "jit-diffusion";
  training.max_skipped_steps = 0;
  training.eval_every = 10;
}

// Whether `path` lies below `folder` where a listing of the folder finds it, which leaves out hidden names. By their
// names alone: links are not followed.
bool is_seen_below(const std::string& path, const std::string& folder) {
  const auto whole = [](const std::string& name) { return std::filesystem::absolute(name).lexically_normal(); };
  const std::filesystem::path below = whole(path).lexically_relative(whole(folder));
  return !below.empty() && std::none_of(below.begin(), below.end(), [](const std::filesystem::path& name) {
    return name.native().starts_with('.');  // also "..", which leads out of the folder, and ".", the folder itself
  });
}

// The run's files and the cache must not lie among the data: the next start would read them, too.
Status check_places(const RunConfig& config) {
  const JitOptions& options = options_of<JitOptions>(config);
  const std::string& train_dir = config.training.train_dir;
  const bool train_dir_is_path = train_dir.find('/') != std::string::npos;
  const auto refused = [&](const std::string& flag, const std::string& path) {
    return invalid("--" + flag + " " + path + " lies in --data_path " + options.data_path +
                   ", so the next start would take it for data: give a folder outside of it");
  };
  if (!config.train_dir_flag.empty() && train_dir_is_path && is_seen_below(train_dir, options.data_path)) {
    return refused(config.train_dir_flag, train_dir);
  }
  // A folder of texts may hold other files, and other folders are no classes there.
  if (options.data_format == JitData::kImages && is_given(config, "cache_dir") &&
      is_seen_below(options.cache_dir, options.data_path)) {
    return refused("cache_dir", options.cache_dir);
  }
  return {};
}

Status check_jit(const RunConfig& config) {
  const JitOptions& options = options_of<JitOptions>(config);
  if (options.data_path.empty()) {
    return invalid("--data_path is required: a folder of images or texts, or generated");
  }
  const int64_t pixels = options.image_size * options.image_size;
  if (options.data_format == JitData::kTokens && is_generated(options.data_path)) {
    return invalid("--data_path " + options.data_path + " makes images, and --data_format tokens needs a folder of " +
                   "texts");
  }
  if (options.max_tokens && *options.max_tokens > pixels) {
    return invalid("--max_tokens " + std::to_string(*options.max_tokens) + ": each token is a pixel, and an image of " +
                   "--img_size " + std::to_string(options.image_size) + " has " + std::to_string(pixels));
  }
  if (options.image_size % options.model.patch_size != 0) {
    return invalid("--img_size " + std::to_string(options.image_size) + " is no multiple of the patches of --model " +
                   options.model.name + ", which are " + std::to_string(options.model.patch_size) + " pixels wide");
  }
  const int64_t needed = tokens_of_first_patch(options);
  if (options.data_format == JitData::kTokens && options.max_tokens && *options.max_tokens < needed) {
    return invalid("--max_tokens " + std::to_string(*options.max_tokens) + ": a patch is predicted only of texts of " +
                   std::to_string(needed) + " tokens or more, so that nothing would be learnt; give at least " +
                   std::to_string(needed) + ", a smaller --img_size, or a --model of smaller patches");
  }
  if (!is_generated(options.data_path)) TRY(check_places(config));
  if (options.sample_images * pixels * 3 > kSheetBytesMax) {
    return invalid("--sample_images " + std::to_string(options.sample_images) + ": the picture of so many images of " +
                   "--img_size " + std::to_string(options.image_size) + " has more than " +
                   std::to_string(kSheetBytesMax >> 20) + " MiB; give at most " +
                   std::to_string(kSheetBytesMax / (pixels * 3)));
  }
  if (is_given(config, "blr") && (is_given(config, "lr") || is_given(config, "lr_scaling"))) {
    return invalid(
        "--blr is the rate for a batch of 256, --lr is taken as it is: give one of them, and --blr without "
        "--lr_scaling");
  }
  if (is_given(config, "output_dir") && is_given(config, "train_dir")) {
    return invalid("--output_dir and --train_dir set the same folder: give only one of them");
  }
  const int64_t eval_every = config.training.eval_every;
  if (is_given(config, "save_interval") && (eval_every == 0 || options.save_interval % eval_every != 0)) {
    return invalid("--save_interval " + std::to_string(options.save_interval) +
                   ": checkpoint files are written only at evaluations, which run " +
                   (eval_every == 0 ? std::string("at the end alone (--eval_every 0)")
                                    : "every " + std::to_string(eval_every) + " epochs (--eval_every)") +
                   ": give a multiple of it, or another --eval_every");
  }
  if (is_given(config, "warmup_steps") && is_given(config, "warmup_epochs")) {
    return invalid("--warmup_steps and --warmup_epochs both set the length of the warm-up: give only one of them");
  }
  return {};
}

Result<std::optional<WorkloadFlags::Settled>> settle_jit(FileSystem& /*fs*/, const RunConfig& config) {
  const JitOptions& options = options_of<JitOptions>(config);
  if (options.data_format != JitData::kAuto || is_generated(options.data_path)) {
    return std::optional<WorkloadFlags::Settled>();
  }
  const FilesSeen seen = count_files(options.data_path);
  const std::string found = likely_format(seen) == DataFormat::kTokens ? "tokens" : "images";
  return std::optional(
      WorkloadFlags::Settled{.arguments = {"--data_format=" + found},
                             .remark = options.data_path + " holds " + to_text(seen) + ": --data_format " + found});
}

std::vector<Preset> jit_presets() {
  return {{.name = "paper",
           .summary = "as published, the defaults above, except for the learning rate: published is --blr 5e-5",
           .values = {}},
          {.name = "guide",
           .summary = "the guide's own values:",
           .values = {{"lr_schedule", "cosine"},
                      {"adam_beta2", "0.999"},
                      {"weight_decay", "0.01"},
                      {"clip_grad_norm", "1"},
                      {"ema_decay", "0"}}}};
}

WorkloadDemo jit_demo() {
  return {.arguments = {"--model",         "4x128/4", "--img_size",     "32",    "--batch_size",  "16",
                        "--num_epochs",    "180",     "--lr",           "0.002", "--lr_schedule", "cosine",
                        "--warmup_epochs", "5",       "--ema_decay",    "0.99",  "--eval_every",  "60",
                        "--sample_images", "25",      "--sample_steps", "25"},
          .data_title = "169 smileys of 64 x 64 pixels",
          .data_file = "emoji/smileys-and-emotion",
          .data_flag = "data_path",
          .generated = "generated:160",
          .how_to_get_data = "To fetch them, in the repository:\n  scripts/get_emoji",
          .task = {"sample", "--count", "64", "--grid", "FOLDER/samples.png"},
          .more = {{"the published model, on a GPU", "--model JiT-B/4 --img_size 64"}}};
}

}  // namespace

WorkloadFlags jit_flags() {
  return {.name = "jit",
          .summary = "images from noise, by a Transformer on pixels (JiT)",
          .data = "folders of JPEG and PNG files, or of texts",
          .example = "lockstep run jit --data_path ./data/train --img_size 64 --nproc 2",
          .demo = jit_demo(),
          .bench_arguments = {"--sample_images", "0"},
          .set_defaults = set_jit_defaults,
          .add_flags =
              [](FlagTableBuilder& table) {
                add_jit_data_flags(table);
                add_jit_model_flags(table);
              },
          .presets = jit_presets(),
          .check = check_jit,
          .data_name = [](const RunConfig& config) { return dataset_name(options_of<JitOptions>(config).data_path); },
          .tasks = {sample_task()},
          .flags_of_weight_file = {},
          .settle = settle_jit};
}

int64_t tokens_of_first_patch(const JitOptions& options) {
  const int64_t patch = options.model.patch_size;
  const int64_t pixels = patch * patch / 2 + 1;
  const int64_t whole_rows = (pixels - 1) / patch;
  return whole_rows * options.image_size + pixels - whole_rows * patch;
}

std::string jit_memory_advice(const JitOptions& options, bool uses_amp) {
  return "a smaller --model (now " + options.model.name + ") or larger patches take less" +
         (uses_amp ? "" : ", and so does --use_amp on a GPU");
}

}  // namespace lockstep
