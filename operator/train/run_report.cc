#include "operator/train/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runner/base/json.h"
#include "runner/base/utf8.h"

namespace lockstep::train {
namespace {

// A report comes from a user's image and goes into the status. Because of a longer text or an invalid date in it, the
// API server would refuse every status of this job.
constexpr size_t kTextBytesMax = 1024;
constexpr int64_t kRestartsMax = 1'000'000'000;         // they are added up
constexpr api::UnixSeconds kTimeMax = 253'402'300'799;  // the last second of the year 9999

std::string short_text(const Json& object, std::string_view name) {
  return shortened(text_field(object, {name}), kTextBytesMax);
}

// 0: not known.
api::UnixSeconds time_in(const Json& object) {
  const int64_t time = number_field(object, {"time"}).value_or(0);
  return time >= 0 && time <= kTimeMax ? time : 0;
}

// The status has no floats; six significant digits are enough to read.
std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::optional<double> real_field(const Json& object, std::string_view name) {
  const Json* const value = field(object, {name});
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

int int_field(const Json& object, std::initializer_list<std::string_view> path, int default_value = 0) {
  return static_cast<int>(number_field(object, path).value_or(default_value));
}

api::JobProgress read_progress(const Json& from) {
  api::JobProgress p;
  p.step = number_field(from, {"step"}).value_or(0);
  p.total_steps = number_field(from, {"totalSteps"}).value_or(0);
  p.epoch = number_field(from, {"epoch"}).value_or(0);
  p.percent = std::clamp(int_field(from, {"percent"}), 0, 100);
  if (const auto seconds = real_field(from, "estimatedRemainingSeconds"); seconds && std::abs(*seconds) < 1e12) {
    p.estimated_remaining_seconds = std::llround(*seconds);
  }
  if (const auto loss = real_field(from, "loss")) p.loss = number_text(*loss);
  if (const auto rate = real_field(from, "samplesPerSecond")) p.samples_per_second = number_text(*rate);
  return p;
}

std::optional<ReportedLoading> read_loading(const Json& report) {
  const Json* const from = field(report, {"loading"});
  if (from == nullptr || !from->is_object()) return std::nullopt;
  const auto unchanged = real_field(*from, "secondsUnchanged");
  if (!unchanged) return std::nullopt;
  return ReportedLoading{.prepared = number_field(*from, {"prepared"}).value_or(0),
                         .to_prepare = number_field(*from, {"toPrepare"}).value_or(0),
                         .seconds_unchanged = *unchanged};
}

std::vector<api::MetricValue> read_metrics(const Json& report) {
  std::vector<api::MetricValue> metrics;
  const Json* const evaluation = field(report, {"metrics"});
  if (evaluation == nullptr || !evaluation->is_object()) return metrics;
  for (const auto& [name, value] : evaluation->items()) {
    if (metrics.size() == kReportedMetricsMax) break;
    // A long name is left out: two of them could be equal once cut, and the status must not contain a name twice.
    if (name.size() > kTextBytesMax) continue;
    if (value.is_number()) metrics.push_back({name, number_text(value.get<double>())});
  }
  return metrics;
}

}  // namespace

Result<RunReport> parse_run_report(const std::string& body) {
  TRY_ASSIGN(const Json json, parse_json(body, "/status of pod 0"));
  if (!json.is_object()) return Error{ErrorCode::kCorrupt, "/status of pod 0 is no JSON object"};
  RunReport report;
  if (const Json* generation = field(json, {"generation"}); generation != nullptr && generation->is_number_unsigned()) {
    report.generation = generation->get<uint64_t>();
  }
  report.job = short_text(json, "job");
  report.phase = short_text(json, "phase");
  report.reason = short_text(json, "reason");
  report.origin = short_text(json, "origin");
  report.num_nodes = int_field(json, {"nnodes"});
  if (const auto wanted = number_field(json, {"wantedNodes"}); wanted && *wanted > 0) {
    report.wanted_nodes = static_cast<int>(*wanted);
  }
  for (const Json& node : list_field(json, {"nodes"})) {
    report.agents.push_back({int_field(node, {"node"}), int_field(node, {"attempt"}), short_text(node, "state")});
  }
  if (const Json* progress = field(json, {"progress"}); progress != nullptr && progress->is_object()) {
    report.progress = read_progress(*progress);
  }
  report.loading = read_loading(json);
  report.metrics = read_metrics(json);
  report.checkpoint_step = number_field(json, {"lastCheckpoint", "step"});
  report.process_restarts = std::clamp<int64_t>(number_field(json, {"restarts"}).value_or(0), 0, kRestartsMax);
  for (const Json& failure : list_field(json, {"recentFailures"})) {
    report.failures.push_back({.node = int_field(failure, {"node"}, -1),
                               .rank = int_field(failure, {"rank"}),
                               .exit_code = int_field(failure, {"exitCode"}),
                               .reason = short_text(failure, "reason"),
                               .message = short_text(failure, "message"),
                               .time = time_in(failure)});
  }
  if (const auto slowest = number_field(json, {"slowest", "rank"}); slowest && *slowest >= 0) {
    report.slowest = SlowestRank{static_cast<int>(*slowest), int_field(json, {"slowest", "node"}, -1)};
  }
  return report;
}

}  // namespace lockstep::train
