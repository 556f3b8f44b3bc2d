#include "runner/agent/progress_report.h"

#include <array>
#include <charconv>
#include <cmath>

#include "runner/base/json.h"
#include "runner/base/json_text.h"
#include "runner/base/utf8.h"

namespace lockstep {
namespace {

constexpr const char* kExpectedReport =
    R"(expected {"trainerStatus": {…}}, as Kubeflow Trainer's progress protocol has it)";
constexpr size_t kReportValuesMax = 4096;  // in the document
constexpr double kReportedStepMax = 1e15;  // steps are multiplied by 100

std::optional<double> finite_number(const Json& value) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    return std::isfinite(number) ? std::optional(number) : std::nullopt;
  }
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<int64_t> count_of(double number) {
  return number >= 0 && number <= kReportedStepMax ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

void read_metric(const std::string& name, double value, ProgressReport& report) {
  if (name == "current_step" || name == "step") {
    report.step = count_of(value);
  } else if (name == "total_steps" || name == "total") {
    report.total_steps = count_of(value);
  } else if (name == "current_epoch" || name == "epoch") {
    report.epoch = count_of(value).value_or(0);
  } else if (name == "loss" || name == "train_loss") {
    report.loss = value;
  } else if (name == "learning_rate" || name == "lr") {
    report.lr = value;
  } else if (name == "grad_norm") {
    report.grad_norm = value;
  } else if (name == "samples_per_second" || name == "train_samples_per_second") {
    report.samples_per_second = value;
  } else if (report.others.size() < kReportedFiguresMax || report.others.contains(name)) {
    report.others[name] = value;
  }
}

void read_metrics(const Json& list, ProgressReport& report) {
  for (const Json& entry : list) {
    const std::string name = text_field(entry, {"name"});
    const Json* const value = field(entry, {"value"});
    if (name.empty() || name.size() > kReportedNameBytesMax || !is_utf8(name) || value == nullptr) continue;
    if (const std::optional<double> number = finite_number(*value)) read_metric(name, *number, report);
  }
}

}  // namespace

Result<ProgressReport> parse_progress_report(std::string_view body) {
  if (body.size() > kProgressReportBytesMax || size_of_json(body).values > kReportValuesMax) {
    return invalid("the report is longer than " + std::to_string(kProgressReportBytesMax) +
                   " bytes, or has more than " + std::to_string(kReportValuesMax) + " values");
  }
  const Result<Json> parsed = parse_json(body, "the report");
  if (!parsed.ok()) return invalid(parsed.error().message + "; " + kExpectedReport);
  const Json* const status = field(*parsed, {"trainerStatus"});
  if (status == nullptr || !status->is_object())
    return invalid(std::string("no object trainerStatus; ") + kExpectedReport);
  ProgressReport report;
  const Json& metrics = list_field(*status, {"metrics"});
  read_metrics(metrics, report);
  if (const Json* const left = field(*status, {"estimatedRemainingSeconds"})) {
    if (const std::optional<double> seconds = finite_number(*left); seconds && *seconds >= 0) {
      report.eta_seconds = *seconds;
    }
  }
  return report;
}

void update(ProgressReport& known, const ProgressReport& newer) {
  const auto take = [](double& to, double from) {
    if (std::isfinite(from)) to = from;
  };
  if (newer.step) known.step = newer.step;
  if (newer.total_steps) known.total_steps = newer.total_steps;
  if (newer.epoch > 0) known.epoch = newer.epoch;
  take(known.loss, newer.loss);
  take(known.lr, newer.lr);
  take(known.grad_norm, newer.grad_norm);
  take(known.samples_per_second, newer.samples_per_second);
  known.eta_seconds = newer.eta_seconds;
  for (const auto& [name, value] : newer.others) {
    if (known.others.size() < kReportedFiguresMax || known.others.contains(name)) known.others[name] = value;
  }
}

}  // namespace lockstep
