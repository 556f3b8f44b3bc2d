#include "runner/telemetry/wandb_log.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "runner/base/atomic_file.h"
#include "runner/base/json.h"
#include "runner/base/sha256.h"

namespace lockstep {
namespace {

constexpr uint64_t kRunFileBytesMax = uint64_t{1} << 20;
constexpr size_t kIdLength = 12;
constexpr const char* kBestLoss = "train/best_loss";
constexpr const char* kEpochLoss = "train_loss";  // of an evaluation: the mean over the steps since the one before

// The id in run.json, which a resumed run keeps; empty when there is none. An error of the volume is not taken for
// that: the curves would go on in another run of Weights & Biases.
Result<std::string> id_in(FileSystem& fs, const std::string& path) {
  const Result<std::string> text = read_file(fs, path, kRunFileBytesMax);
  if (!text.ok() && text.error().code == ErrorCode::kUnavailable) return text.error();
  if (!text.ok()) return std::string();
  const Result<Json> json = parse_json(*text, path);
  if (!json.ok() || !json->is_object()) return std::string();
  const auto id = json->find("id");
  return id != json->end() && id->is_string() ? id->get<std::string>() : std::string();
}

// The best loss in the last line that has one; infinity when no line has.
double best_loss_in(const std::string& lines) {
  double best = std::numeric_limits<double>::infinity();
  const size_t at = lines.rfind("\"" + std::string(kBestLoss) + "\"");
  if (at == std::string::npos) return best;
  const size_t newline = lines.rfind('\n', at);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  const Result<Json> line = parse_json(lines.substr(begin, lines.find('\n', at) - begin), "line");
  if (!line.ok() || !line->is_object()) return best;
  const auto value = line->find(kBestLoss);
  return value != line->end() && value->is_number() ? value->get<double>() : best;
}

}  // namespace

Result<WandbLog> WandbLog::open(FileSystem& fs, const RunConfig& config, const Options& options) {
  const std::string folder = join_path(options.run_folder, kWandbFolder);
  TRY(make_directories(fs, folder));
  const std::string run_path = join_path(folder, "run.json");
  const WandbOptions& wandb = config.training.wandb;
  // In the run's folder, whose leftovers the next start removes.
  const std::string temporary = join_path(options.run_folder, temporary_name(options.stamp, kWandbFolder));
  std::string id;
  if (options.resume_step > 0) {
    TRY_ASSIGN(id, id_in(fs, run_path));
  }
  if (id.empty()) {
    const std::string unique = options.run_folder + " " + std::to_string(options.time) + " " + std::to_string(getpid());
    id = sha256_hex(unique).substr(0, kIdLength);
  }
  OrderedJson run{{"project", wandb.project},
                  {"name", wandb.name.empty() ? base_name(options.run_folder) : wandb.name},
                  {"entity", wandb.entity},
                  {"id", id},
                  {"config", OrderedJson::object()}};
  for (const FlagValue& flag : config.flags) run["config"][flag.name] = flag.value;
  TRY(write_file_atomically(fs, run_path, dump_pretty(run), temporary));

  const std::string path = join_path(folder, "metrics.jsonl");
  TRY_ASSIGN(MetricsLog lines, MetricsLog::open(fs, path, options.resume_step, temporary));
  WandbLog log(std::move(lines));
  TRY_ASSIGN(const std::string kept, read_file(fs, path, kLineFileBytesMax));
  log.best_loss_ = best_loss_in(kept);
  log.epochs_ = options.resume_epochs;
  log.time_ = options.time;
  return log;
}

Status WandbLog::append(const StepReport& report) {
  if (log_.has_step(report.steps_done())) return {};
  samples_ += report.samples_since;
  OrderedJson figures = OrderedJson::object();
  figures["train/loss"] = report.loss;
  for (const auto& [name, value] : report.terms) figures["train/loss_" + name] = value;
  figures["train/learning_rate"] = report.lr;
  figures["train/grad_norm"] = report.grad_norm;
  figures["train/step"] = report.steps_done();
  figures["train/samples_per_second"] = report.samples_per_second;
  figures["train/epoch"] = report.epoch;
  figures["time"] = report.time;
  return log_.append_line(report.steps_done(), MetricsLog::Kind::kStep, figures);
}

Status WandbLog::append(const EvaluationRecord& record) {
  if (log_.has_evaluation(record.step)) return {};
  OrderedJson figures = OrderedJson::object();
  const int64_t epochs = record.epoch - epochs_;
  const double seconds = record.time - time_;
  for (const auto& [name, value] : record.metrics) {
    figures[name == kEpochLoss ? "train/epoch_loss" : "eval/" + name] = value;
    if (name == kEpochLoss) best_loss_ = std::min(best_loss_, value);
  }
  if (epochs > 0 && seconds > 0.0) {
    figures["train/epoch_time"] = seconds / static_cast<double>(epochs);
    figures["train/samples_per_second"] = static_cast<double>(samples_) / seconds;
  }
  figures["train/epoch"] = record.epoch;
  if (best_loss_ < std::numeric_limits<double>::infinity()) figures[kBestLoss] = best_loss_;
  figures["time"] = record.time;
  epochs_ = record.epoch;
  time_ = record.time;
  samples_ = 0;
  return log_.append_line(record.step, MetricsLog::Kind::kEvaluation, figures);
}

}  // namespace lockstep
