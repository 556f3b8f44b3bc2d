#include "runner/models/sasrec/sasrec_workload.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "runner/base/check.h"
#include "runner/base/plural.h"
#include "runner/data/dataset.h"
#include "runner/data/sampler.h"
#include "runner/models/sasrec/item_memory.h"
#include "runner/models/sasrec/tisasrec_model.h"

namespace lockstep {
namespace {

// The weights are saved whenever one of these improves, as in the guide.
constexpr std::array<const char*, 4> kSavedMetrics = {"valid_ndcg@10", "valid_hr@10", "test_ndcg@10", "test_hr@10"};

std::string figures_text(const EvaluationMetrics& metrics, const std::string& prefix) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), "valid (NDCG@10: %.4f, HR@10: %.4f), test (NDCG@10: %.4f, HR@10: %.4f)",
                metric_value(metrics, prefix + "valid_ndcg@10"), metric_value(metrics, prefix + "valid_hr@10"),
                metric_value(metrics, prefix + "test_ndcg@10"), metric_value(metrics, prefix + "test_hr@10"));
  return text.data();
}

// Formats `value` as Python prints a float, for the learning rate in the guide's file names.
std::string python_float(double value) {
  const double magnitude = std::fabs(value);
  const bool fixed = value == 0.0 || (magnitude >= 1e-4 && magnitude < 1e16);
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string out(text.data(), end.ptr);
  if (fixed && out.find('.') == std::string::npos) out += ".0";
  return out;
}

const char* form_name(SasrecForm form) {
  constexpr std::array kNames{"post-norm", "pre-norm (--norm_first)", "original (--original)"};
  return kNames.at(static_cast<size_t>(form));
}

std::string variant_text(const SasrecOptions& options) {
  if (options.variant == SequenceVariant::kSasrec) return std::string("sasrec, ") + form_name(options.form());
  const TisasrecOptions& t = options.tisasrec;
  std::string text = "tisasrec, ";
  if (t.no_time) {
    text += "without times";
  } else {
    constexpr const char* kUnits[] = {"of the user's smallest gap", "seconds", "minutes", "hours", "days"};
    text += "times up to " + std::to_string(t.time_span) + " " + kUnits[static_cast<size_t>(t.time_unit)];
  }
  return text + (t.no_mhc ? "" : ", mHC with " + std::to_string(t.mhc_expansion_rate) + " copies");
}

std::string times_text(const InteractionsReport& report, const std::string& unit) {
  std::string text = report.times;
  if (!unit.empty()) text += "; taken for " + unit;
  if (report.rounded_times > 0) {
    text += "; " + std::to_string(report.rounded_times) + " have fractions of a second, which are sorted, then rounded";
  }
  return text;
}

// "3 users (a, b and 1 more)"
std::string count_with_names(int64_t count, const char* what, const std::vector<std::string>& names) {
  std::string text = plural(count, what);
  if (names.empty()) return text;
  text += " (" + joined(names);
  const int64_t more = count - std::ssize(names);
  return text + (more > 0 ? " and " + std::to_string(more) + " more)" : ")");
}

// Rows on the lines that are not trained on as they are in the file.
std::vector<std::pair<std::string, std::string>> left_out(const InteractionsReport& report) {
  std::vector<std::pair<std::string, std::string>> rows;
  std::string bad = std::to_string(report.bad_lines) + " of " + std::to_string(report.lines);
  for (const BadLine& line : report.bad_samples) {
    bad += (&line == report.bad_samples.data() ? ": line " : "; line ") + std::to_string(line.line) + ", " +
           line.reason + ": " + line.text;
  }
  const int64_t more = report.bad_lines - std::ssize(report.bad_samples);
  if (more > 0) bad += "; and " + std::to_string(more) + " more";
  rows.emplace_back("bad lines", bad);
  if (report.equal_events > 0) {
    rows.emplace_back("equal events",
                      std::to_string(report.equal_events) + " dropped: the user, item and time of another line");
  }
  if (report.repeated_events > 0) {
    rows.emplace_back("repeated items", std::to_string(report.repeated_events) +
                                            " events have an item that the user had before; kept, as without times "
                                            "nobody can tell whether they are the same event");
  }
  if (report.min_count > 0) {
    rows.emplace_back("min_count", std::to_string(report.min_count) + ": dropped " +
                                       count_with_names(report.dropped_users, "user", report.dropped_user_names) +
                                       ", " +
                                       count_with_names(report.dropped_items, "item", report.dropped_item_names) +
                                       ", with " + plural(report.dropped_events, "event"));
  }
  if (!report.encoding.empty()) rows.emplace_back("encoding", report.encoding);
  return rows;
}

// "; 120 events of 3 users are older than --maxlen and not trained on"
std::string older_events_text(const SasrecData& data, int64_t maxlen) {
  int64_t events = 0;
  int64_t users = 0;
  for (int64_t user = 1; user <= data.num_users(); ++user) {
    const int64_t older = std::ssize(data.split(user).train) - (maxlen + 1);  // the newest one is only a target
    if (older <= 0) continue;
    events += older;
    ++users;
  }
  if (events == 0) return {};
  return "; " + plural(events, "event") + " of " + plural(users, "user") + (events == 1 ? " is" : " are") +
         " older than --maxlen and not trained on";
}

double embedding_penalty_weight(const SasrecOptions& options) {
  return options.l2_emb.value_or(options.variant == SequenceVariant::kTisasrec ? 5e-5 : 0.0);
}

}  // namespace

Result<std::unique_ptr<SasrecWorkload>> SasrecWorkload::create(const RunConfig& config, Dataset dataset,
                                                               at::Device device) {
  TRY_ASSIGN(SasrecData data, SasrecData::create(std::move(dataset), protocol_of(options_of<SasrecOptions>(config))));
  const Result<std::string> memory = item_memory_text({.num_items = data.num_items(),
                                                       .hidden_units = options_of<SasrecOptions>(config).hidden_units,
                                                       .averages = config.training.ema_decays.size(),
                                                       .ranks = device.is_cpu() ? config.launch.nproc.value_or(1) : 1,
                                                       .available_bytes = memory_of(device),
                                                       .keeps_ids = keeps_ids(data.report().format)});
  if (!memory.ok()) return Error{ErrorCode::kInvalid, data.report().path + ": " + memory.error().message};
  std::unique_ptr<SasrecWorkload> workload(new SasrecWorkload(config, std::move(data), device));
  workload->memory_text_ = *memory;
  return workload;
}

SasrecWorkload::SasrecWorkload(const RunConfig& config, SasrecData data, at::Device device)
    : options_(options_of<SasrecOptions>(config)),
      lr_(config.training.lr),
      device_(device),
      data_(std::move(data)),
      model_(make_sequence_model(options_, data_.num_items(), device)),
      best_(kSavedMetrics.size(), 0.0) {}

Json SasrecWorkload::shared_facts() const {
  return {{"number of samples", data_.num_users()},
          {"number of items", data_.num_items()},
          {"sha256 of the interactions", data_.sha256()}};
}

double SasrecWorkload::flops_per_sample() const {
  const auto t = static_cast<double>(options_.maxlen);
  const auto d = static_cast<double>(options_.hidden_units);
  const double projections = 2.0 * 6.0 * d * d;  // per position: Q, K, V, output, and two in the feed-forward
  const double attention = 2.0 * 2.0 * t * d;    // per position: scores and the weighted sum of values
  const double logits = 2.0 * 2.0 * d;
  // Per position: a product with each time table.
  const double times = data_.has_times() ? 2.0 * 2.0 * static_cast<double>(options_.tisasrec.time_span + 1) * d : 0.0;
  constexpr double kForwardAndBackward = 3.0;
  return kForwardAndBackward * t *
         (static_cast<double>(options_.num_blocks) * (projections + attention + times) + logits);
}

std::string SasrecWorkload::memory_advice() const {
  return "a smaller --maxlen (now " + std::to_string(options_.maxlen) +
         ") takes less, and so does --use_amp on a GPU, or more ranks for the same --batch_size";
}

std::vector<std::pair<std::string, std::string>> SasrecWorkload::describe() const {
  const InteractionsReport& report = data_.report();
  const auto evaluable = data_.evaluable_users();
  const auto evaluated = options_.eval_users == 0 ? evaluable : std::min(options_.eval_users, evaluable);
  const auto text = [](int64_t value) { return std::to_string(value); };
  std::vector<std::pair<std::string, std::string>> lines = {
      {"variant", variant_text(options_)},
      {"parameters", text(count_elements(model_->parameters()))},
      {"data set", report.path + " (" + to_string(report.format) + ")"}};
  if (!report.columns.empty()) lines.emplace_back("columns", report.columns);
  lines.emplace_back("times", times_text(report, data_.timestamp_unit()));
  lines.insert(lines.end(), {{"users", text(data_.num_users())},
                             {"items", text(data_.num_items())},
                             {"memory for items", memory_text_},
                             {"interactions", text(report.events)},
                             {"split", text(data_.train_events()) + " events of " + text(data_.usable_users()) +
                                           " users train; " + text(evaluated) + " of " + text(evaluable) +
                                           " users validate and test" + older_events_text(data_, options_.maxlen)}});
  for (auto& line : left_out(report)) lines.push_back(std::move(line));
  return lines;
}

std::vector<ParameterGroup> SasrecWorkload::groups() const {
  return {{.name = "", .parameters = model_->parameters(), .weight_decay = std::nullopt}};
}

Result<std::unique_ptr<BatchSource>> SasrecWorkload::batches(const BatchOptions& options) const {
  return Sampler::create(
      {.seed = options.seed, .num_samples = data_.num_users(), .global_batch = options.global_batch});
}

Result<HostBatch> SasrecWorkload::fetch(const BatchShare& share) const {
  const auto b = static_cast<int64_t>(share.samples.size());
  const int64_t t = options_.maxlen;
  const bool has_times = data_.has_times();
  // One tensor holds all rows: input, positives, negatives, and the times of the input.
  const at::Tensor rows_RBT =
      at::empty({has_times ? 4 : 3, b, t}, at::TensorOptions(at::kLong).pinned_memory(!device_.is_cpu()));
  int64_t positions = 0;
  for (int64_t i = 0; i < b; ++i) {
    const auto row = [&](int64_t role) {
      return std::span<int64_t>(rows_RBT.data_ptr<int64_t>() + (role * b + i) * t, static_cast<size_t>(t));
    };
    positions += data_.fill_train_row(
        share, i, {.seq = row(0), .pos = row(1), .neg = row(2), .times = has_times ? row(3) : std::span<int64_t>()});
  }
  HostBatch batch{.tensors = {{"ids_3BT", rows_RBT.narrow(0, 0, 3)}}, .weights = {static_cast<double>(positions)}};
  if (has_times) batch.tensors.push_back({"times_BT", rows_RBT[3]});
  return batch;
}

std::vector<at::Tensor> SasrecWorkload::loss(const DeviceBatch& batch) {
  const at::Tensor& ids_3BT = batch["ids_3BT"];
  const at::Tensor times_BT = batch.has("times_BT") ? batch["times_BT"] : at::Tensor();
  LOCKSTEP_CHECK(batch.is_training, "its evaluation ranks items and computes no loss");
  const DropoutKey dropout{
      .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0};
  const auto logits_BT = model_->train_logits(ids_3BT, times_BT, dropout).unbind(0);  // positives, negatives
  // -log sigmoid(x) for a positive, -log sigmoid(-x) for a negative, 0 where there is no positive.
  const at::Tensor gains_BT = at::log_sigmoid(logits_BT[0]) + at::log_sigmoid(-logits_BT[1]);
  return {-(gains_BT * ids_3BT[1].ne(0)).sum()};
}

at::Tensor SasrecWorkload::regularization() {
  const double weight = embedding_penalty_weight(options_);
  if (weight == 0.0) return {};
  return weight * model_->embedding_penalty();
}

Result<NamedTensors> SasrecWorkload::weights_of_file(NamedTensors file) const {
  if (options_.variant == SequenceVariant::kTisasrec) cut_time_table(file, options_.tisasrec.time_span);
  return file;
}

Result<std::vector<MetricSum>> SasrecWorkload::evaluate(const EvaluationShard& shard) {
  return evaluate_sasrec(*model_, data_,
                         {.maxlen = options_.maxlen,
                          .users_max = options_.eval_users,
                          .candidates = options_.eval_negatives,
                          .full_ranking = options_.full_ranking},
                         shard);
}

std::vector<std::string> SasrecWorkload::evaluation_lines(const EvaluationReport& report) {
  const std::string epoch = "epoch:" + std::to_string(report.epoch);
  std::array<char, 64> time{};
  std::snprintf(time.data(), time.size(), ", time: %f(s), ", report.seconds_training);
  std::vector<std::string> lines = {epoch + time.data() + figures_text(report.metrics, "")};
  if (has_metric(report.metrics, "full_valid_ndcg@10")) {
    lines.push_back(epoch + ", full ranking: " + figures_text(report.metrics, "full_"));
  }
  return lines;
}

std::string SasrecWorkload::log_header() const { return "epoch (val_ndcg, val_hr) (test_ndcg, test_hr)"; }

std::string SasrecWorkload::log_line(const EvaluationReport& report) const {
  const EvaluationMetrics& m = report.metrics;
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), "%lld (%.6f, %.6f) (%.6f, %.6f)", static_cast<long long>(report.epoch),
                metric_value(m, "valid_ndcg@10"), metric_value(m, "valid_hr@10"), metric_value(m, "test_ndcg@10"),
                metric_value(m, "test_hr@10"));
  return text.data();
}

std::vector<std::string> SasrecWorkload::outputs(const EvaluationReport& report) {
  bool improved = false;
  for (size_t i = 0; i < kSavedMetrics.size(); ++i) {
    const double value = metric_value(report.metrics, kSavedMetrics[i]);
    improved = improved || value > best_[i];
    best_[i] = std::max(best_[i], value);
  }
  if (!improved) return {};
  return {std::string(options_.variant == SequenceVariant::kTisasrec ? "TiSASRec" : "SASRec") +
          ".epoch=" + std::to_string(report.epoch) + ".lr=" + python_float(lr_) +
          ".layer=" + std::to_string(options_.num_blocks) + ".head=" + std::to_string(options_.num_heads) +
          ".hidden=" + std::to_string(options_.hidden_units) + ".maxlen=" + std::to_string(options_.maxlen) + ".pth"};
}

Json SasrecWorkload::progress_state() const {
  Json best = Json::object();
  for (size_t i = 0; i < kSavedMetrics.size(); ++i) best[kSavedMetrics[i]] = best_[i];
  return Json{{"best", best}, {SasrecData::kItemsField, data_.items_sha256()}};
}

Status SasrecWorkload::restore_progress(const Json& state) {
  TRY(data_.check_item_numbers(state));
  std::vector<double> best;
  for (const char* const name : kSavedMetrics) {
    const Json::json_pointer field = Json::json_pointer("/best") / name;
    if (!state.contains(field) || !state.at(field).is_number()) {
      return Error{ErrorCode::kCorrupt, "workload progress: field best." + std::string(name) +
                                            " is missing or no number; the checkpoint is damaged"};
    }
    best.push_back(state.at(field).get<double>());
  }
  best_ = std::move(best);
  return {};
}

WorkloadOrFailure make_sasrec(FileSystem& fs, const RunConfig& config, at::Device device,
                              const OnDataProgress& on_progress) {
  const SasrecOptions& options = options_of<SasrecOptions>(config);
  ReadOptions read{.min_count = options.min_count, .max_bad_lines = options.max_bad_lines};
  if (config.training.verbose) read.names_max = SIZE_MAX;
  Result<Dataset> dataset = load_dataset(fs, options.dataset, options.data_dir, read, [&] { on_progress(0, 0); });
  if (!dataset.ok()) return data_failure(dataset.error().message);
  return workload_or_failure(SasrecWorkload::create(config, std::move(dataset).value(), device));
}

}  // namespace lockstep
