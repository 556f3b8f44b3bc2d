#include "runner/telemetry/metrics_log.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"

namespace lockstep {

namespace {

struct KeptLines {
  std::string text;
  int64_t last_step = -1;
  int64_t last_evaluation_step = -1;
};

struct LineKey {
  int64_t step = 0;
  bool evaluation = false;
};

std::optional<LineKey> key_of(std::string_view line) {
  const Result<Json> parsed = parse_json(line, "line");
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const auto step = parsed->find("step");
  if (step == parsed->end() || !step->is_number_integer()) return std::nullopt;
  return LineKey{.step = step->get<int64_t>(), .evaluation = parsed->contains("evaluation")};
}

// The complete lines up to `resume_step`, one for each step. Reads from the end. Steps never decrease in the file, so
// once it has found a line of an earlier step, it keeps that line and all before it without reading them.
KeptLines lines_to_keep(std::string_view text, int64_t resume_step) {
  KeptLines kept;
  if (resume_step == 0) return kept;
  size_t end = text.rfind('\n') + 1;                                 // after the last complete line; 0 if there is none
  std::vector<std::pair<LineKey, std::string_view>> of_resume_step;  // from the last line backwards
  while (end > 0) {
    const size_t begin = end < 2 ? 0 : text.rfind('\n', end - 2) + 1;
    const std::string_view line = text.substr(begin, end - begin);
    const std::optional<LineKey> key = key_of(line);
    if (key && key->step < resume_step) {
      // A step's evaluation is written after the step's line and before the next step's, so all earlier evaluations
      // have their lines.
      kept.last_step = key->step;
      kept.last_evaluation_step = key->evaluation ? key->step : key->step - 1;
      break;
    }
    if (key && key->step == resume_step) of_resume_step.emplace_back(*key, line);
    end = begin;
  }
  kept.text = text.substr(0, end);
  for (auto it = of_resume_step.rbegin(); it != of_resume_step.rend(); ++it) {
    int64_t& last = it->first.evaluation ? kept.last_evaluation_step : kept.last_step;
    if (std::exchange(last, resume_step) < resume_step) kept.text.append(it->second);
  }
  return kept;
}

}  // namespace

Result<MetricsLog> MetricsLog::open(FileSystem& fs, const std::string& path, int64_t resume_step,
                                    const std::string& temporary, uint64_t bytes_max) {
  KeptLines kept;
  TRY_ASSIGN(std::string moved_to, move_too_large(fs, path, bytes_max));
  const Result<std::string> text = read_file(fs, path, bytes_max);
  if (text.ok()) {
    kept = lines_to_keep(*text, resume_step);
  } else if (text.error().code != ErrorCode::kNotFound) {
    return text.error();
  }
  // Makes a new file even if the lines are the same, because an old rank 0 that was cut off may still write to the old
  // one.
  Result<AppendFile> file = AppendFile::replace(fs, path, kept.text, temporary);
  if (!file.ok()) return file.error().with_context(path);
  MetricsLog log(std::move(*file));
  log.moved_to_ = std::move(moved_to);
  log.last_step_ = kept.last_step;
  log.last_evaluation_step_ = kept.last_evaluation_step;
  return log;
}

Status MetricsLog::append(const StepReport& report) {
  OrderedJson line{{"epoch", report.epoch}, {"loss", report.loss}};
  for (const auto& [name, value] : report.terms) line["loss_" + name] = value;
  line["lr"] = report.lr;
  line["grad_norm"] = report.grad_norm;
  line["samples_per_second"] = report.samples_per_second;
  line["samples"] = report.samples_since;
  line["time"] = report.time;
  return append_line(report.steps_done(), Kind::kStep, line);
}

Status MetricsLog::append(const EvaluationRecord& record) {
  OrderedJson line{{"epoch", record.epoch}, {"evaluation", true}};
  for (const auto& [name, value] : record.metrics) line[name] = value;
  line["time"] = record.time;
  return append_line(record.step, Kind::kEvaluation, line);
}

Status MetricsLog::append_line(int64_t step, Kind kind, const OrderedJson& figures) {
  int64_t& last = kind == Kind::kEvaluation ? last_evaluation_step_ : last_step_;
  if (step <= last) return {};
  last = step;
  OrderedJson line = OrderedJson::object();
  line["step"] = step;
  for (const auto& [name, value] : figures.items()) line[name] = value;
  if (kind == Kind::kEvaluation) line["evaluation"] = true;
  return file_.append(dump_line(line) + "\n");
}

}  // namespace lockstep
