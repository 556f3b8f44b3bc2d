#include "runner/models/sasrec/sasrec_flags.h"

#include <algorithm>
#include <any>
#include <array>
#include <utility>

#include "runner/config/flag_table_builder.h"
#include "runner/data/dataset.h"

namespace lockstep {
namespace {

constexpr FlagScope kThisProcess = FlagScope::kThisProcess;
constexpr FlagScope kAllRanks = FlagScope::kAllRanks;
constexpr FlagScope kMaths = FlagScope::kMaths;

// Accepted, and without effect on --variant sasrec.
constexpr std::array<const char*, 8> kTisasrecFlags = {
    "time_span",          "time_unit",     "no_time",           "no_mhc",
    "mhc_expansion_rate", "mhc_init_gate", "mhc_sinkhorn_iter", "mhc_no_amp"};

// `OPTION(maxlen)` is a function from a config to that option, const or not.
#define OPTION(member) \
  [](auto& config) -> auto& { return sasrec_options(config).member; }

void add_data_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& dataset = table.text(
      "dataset", kMaths, "a name or a path", OPTION(dataset),
      "data set: a file, a folder, or a name looked for under --data_dir; generated: one made in memory; auto: "
      "the only one under --data_dir, or generated (required)");
  dataset.names_path = NamesPath::kFile;
  dataset.identity = dataset_name;
  table.text("data_dir", kThisProcess, "a folder", OPTION(data_dir), "where data sets are looked for by name")
      .names_path = NamesPath::kFolder;
  table.optional_integer("min_count", kMaths, 0, kCountMax, OPTION(min_count),
                         "drop users and items with fewer lines, counted once; auto: 5 with ratings or times, else 0");
  table.real("max_bad_lines", kAllRanks, 0.0, 1.0, false, OPTION(max_bad_lines),
             "share of malformed lines above which the data set is refused");
}

void add_model_flags(FlagTableBuilder& table) {
  table.group("Model");
  table.text("variant", kMaths, "sasrec", OPTION(variant), "model variant");
  table.boolean("norm_first", kMaths, OPTION(norm_first),
                "layer norm before attention and feed-forward instead of after");
  table.boolean("original", kMaths, OPTION(original), "the form of the original SASRec code");
  table.integer("maxlen", kMaths, 1, kWidthMax, OPTION(maxlen), "longest sequence, in items");
  table.integer("hidden_units", kMaths, 1, kWidthMax, OPTION(hidden_units), "width; divisible by --num_heads");
  table.integer("num_blocks", kMaths, 0, 1024, OPTION(num_blocks), "attention blocks");
  table.integer("num_heads", kMaths, 1, kWidthMax, OPTION(num_heads), "attention heads");
  table.real("dropout_rate", kMaths, 0.0, 1.0, true, OPTION(dropout_rate), "dropout probability");
  table.real("l2_emb", kMaths, 0.0, 1e6, false, OPTION(l2_emb), "weight of the squared item embeddings in the loss");

  table.group("TiSASRec and mHC (accepted; used by --variant tisasrec only)");
  table.integer("time_span", kThisProcess, 1, kCountMax, OPTION(tisasrec.time_span),
                "longest time gap told apart, in --time_unit");
  table.choice("time_unit", kThisProcess, {"second", "minute", "hour", "day"}, OPTION(tisasrec.time_unit),
               "unit of --time_span");
  table.boolean("no_time", kThisProcess, OPTION(tisasrec.no_time), "no time intervals");
  table.boolean("no_mhc", kThisProcess, OPTION(tisasrec.no_mhc), "plain residual connections");
  table.integer("mhc_expansion_rate", kThisProcess, 1, 1024, OPTION(tisasrec.mhc_expansion_rate),
                "residual streams of mHC");
  table.real("mhc_init_gate", kThisProcess, 0.0, 1e6, false, OPTION(tisasrec.mhc_init_gate), "initial gate of mHC");
  table.integer("mhc_sinkhorn_iter", kThisProcess, 0, 10000, OPTION(tisasrec.mhc_sinkhorn_iter),
                "Sinkhorn iterations of mHC");
  table.boolean("mhc_no_amp", kThisProcess, OPTION(tisasrec.mhc_no_amp), "mHC in full precision");
}

void add_evaluation_flags(FlagTableBuilder& table) {
  table.group("Evaluation of rankings");
  table.integer("eval_users", kAllRanks, 0, kCountMax, OPTION(eval_users), "evaluate at most so many; 0: all")
      .changes_evaluations = true;
  table.integer("eval_negatives", kAllRanks, 1, 1'000'000, OPTION(eval_negatives), "random items to rank against")
      .changes_evaluations = true;
  table.boolean("full_ranking", kAllRanks, OPTION(full_ranking), "rank against all items as well");
}

#undef OPTION

Status check(const RunConfig& config) {
  const SasrecOptions& options = sasrec_options(config);
  const auto invalid = [](std::string message) { return Error{ErrorCode::kInvalid, std::move(message)}; };
  if (options.dataset.empty()) return invalid("--dataset is required: a name looked for under --data_dir, or a path");
  if (options.variant != "sasrec") {
    const std::string why = options.variant == "tisasrec" ? "TiSASRec is not in this build" : "no such variant";
    return invalid("--variant: found \"" + options.variant + "\" (" + why + "), expected sasrec");
  }
  if (options.norm_first && options.original) {
    return invalid("--norm_first and --original contradict each other: give one of them");
  }
  if (options.hidden_units % options.num_heads != 0) {
    return invalid("--hidden_units " + std::to_string(options.hidden_units) + " is not divisible by --num_heads " +
                   std::to_string(options.num_heads));
  }
  return {};
}

std::vector<std::string> notes(const RunConfig& config) {
  std::vector<std::string> lines;
  for (const std::string name : kTisasrecFlags) {
    if (is_given(config, name)) lines.push_back("--" + name + ": used by --variant tisasrec only");
  }
  return lines;
}

Result<std::optional<WorkloadFlags::Settled>> settle(const RunConfig& config) {
  const SasrecOptions& options = sasrec_options(config);
  if (options.dataset != kAutoDataset) return std::optional<WorkloadFlags::Settled>();
  TRY_ASSIGN(DatasetChoice choice, choose_dataset(options.data_dir));
  return std::optional(
      WorkloadFlags::Settled{.arguments = {"--dataset=" + choice.dataset}, .remark = std::move(choice.remark)});
}

}  // namespace

WorkloadFlags sasrec_flags() {
  return {.name = "sasrec",
          .summary = "SASRec: the next item of a user's sequence, by self-attention",
          .example = "lockstep run sasrec --dataset ml-100k --nproc 2",
          .set_defaults = [](RunConfig& config) { config.options = SasrecOptions{}; },
          .add_flags =
              [](FlagTableBuilder& table) {
                add_data_flags(table);
                add_model_flags(table);
                add_evaluation_flags(table);
              },
          .check = check,
          .data_name = [](const RunConfig& config) { return dataset_name(sasrec_options(config).dataset); },
          .notes = notes,
          .settle = settle};
}

const SasrecOptions& sasrec_options(const RunConfig& config) {
  return std::any_cast<const SasrecOptions&>(config.options);
}

SasrecOptions& sasrec_options(RunConfig& config) { return std::any_cast<SasrecOptions&>(config.options); }

}  // namespace lockstep
