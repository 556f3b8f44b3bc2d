#include "operator/train/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "runner/base/json.h"
#include "runner/base/json_text.h"
#include "runner/base/utf8.h"
#include "runner/contract/run_status.h"

namespace lockstep::train {
namespace {

// A report comes from a user's image, is kept for as long as the job, and goes into the status. Because of a longer
// text or an invalid date in it, the API server would refuse every status of this job.
constexpr size_t kTextBytesMax = 1024;
constexpr size_t kStateBytesMax = 16;  // of an agent: one of a few words
// A summary of 10,000 agents has 60,000. As a document they take about 10 MB, in each of the threads that read reports.
constexpr size_t kValuesMax = 100'000;
constexpr int64_t kRestartsMax = 1'000'000'000;         // they are added up
constexpr int64_t kCountMax = 1'000'000'000'000'000;    // of steps, epochs, pieces of data: they are multiplied by 100
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

// nullopt: it is missing, or is outside of 0 … max.
std::optional<int64_t> count_in(const Json& object, std::initializer_list<std::string_view> path,
                                int64_t max = kCountMax) {
  const std::optional<int64_t> number = number_field(object, path);
  return number && *number >= 0 && *number <= max ? number : std::nullopt;
}

// The default value, too, for a number that is no int.
int int_field(const Json& object, std::initializer_list<std::string_view> path, int default_value = 0) {
  const int64_t number = number_field(object, path).value_or(default_value);
  using Limits = std::numeric_limits<int>;
  return number < Limits::min() || number > Limits::max() ? default_value : static_cast<int>(number);
}

api::JobProgress read_progress(const Json& from) {
  api::JobProgress p;
  p.step = count_in(from, {"step"}).value_or(0);
  p.total_steps = count_in(from, {"totalSteps"}).value_or(0);
  p.epoch = count_in(from, {"epoch"}).value_or(0);
  p.percent = std::clamp(int_field(from, {"percent"}), 0, 100);
  if (const auto seconds = real_field(from, "estimatedRemainingSeconds"); seconds && std::abs(*seconds) < 1e12) {
    p.estimated_remaining_seconds = std::llround(*seconds);
  }
  if (const auto loss = real_field(from, "loss")) p.loss = number_text(*loss);
  if (const auto rate = real_field(from, "samplesPerSecond")) p.samples_per_second = number_text(*rate);
  if (const auto rate = real_field(from, "stepsPerSecond")) p.steps_per_second = number_text(*rate);
  return p;
}

std::optional<ReportedLoading> read_loading(const Json& report) {
  const Json* const from = field(report, {"loading"});
  if (from == nullptr || !from->is_object()) return std::nullopt;
  const auto unchanged = real_field(*from, "secondsUnchanged");
  if (!unchanged) return std::nullopt;
  return ReportedLoading{.prepared = count_in(*from, {"prepared"}).value_or(0),
                         .to_prepare = count_in(*from, {"toPrepare"}).value_or(0),
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

// Those that the job's pods can be, each once.
std::vector<ReportedAgent> read_agents(const Json& report, int num_nodes) {
  std::vector<ReportedAgent> agents;
  std::vector<bool> is_known(static_cast<size_t>(std::max(num_nodes, 0)));
  for (const Json& node : list_field(report, {"nodes"})) {
    const int node_rank = int_field(node, {"node"}, -1);
    if (node_rank < 0 || node_rank >= num_nodes || is_known[static_cast<size_t>(node_rank)]) continue;
    is_known[static_cast<size_t>(node_rank)] = true;
    agents.push_back({node_rank, int_field(node, {"attempt"}), cut_utf8(text_field(node, {"state"}), kStateBytesMax)});
  }
  return agents;
}

// The newest, which are the last.
std::vector<api::RecentFailure> read_failures(const Json& report) {
  const Json& list = list_field(report, {"recentFailures"});
  std::vector<api::RecentFailure> failures;
  for (size_t i = list.size() - std::min(list.size(), kRecentFailuresMax); i < list.size(); ++i) {
    const Json& failure = list[i];
    failures.push_back({.node = int_field(failure, {"node"}, -1),
                        .rank = int_field(failure, {"rank"}),
                        .exit_code = int_field(failure, {"exitCode"}),
                        .reason = short_text(failure, "reason"),
                        .message = short_text(failure, "message"),
                        .time = time_in(failure)});
  }
  return failures;
}

}  // namespace

Result<RunReport> parse_run_report(const std::string& body, int num_nodes) {
  if (const size_t values = size_of_json(body).values; values > kValuesMax) {
    return corrupt("/status of pod 0", "has " + std::to_string(values) + " values; a summary has at most " +
                                           std::to_string(kValuesMax) + ": use an image of this version of lockstep");
  }
  TRY_ASSIGN(const Json json, parse_json(body, "/status of pod 0"));
  if (!json.is_object()) return Error{ErrorCode::kCorrupt, "/status of pod 0 is no JSON object"};
  RunReport report;
  if (const Json* generation = field(json, {"generation"}); generation != nullptr && generation->is_number_unsigned()) {
    report.generation = generation->get<uint64_t>();
  }
  report.job = short_text(json, "job");
  report.job_uid = short_text(json, "jobUid");
  report.job_namespace = short_text(json, "namespace");
  report.phase = short_text(json, "phase");
  report.reason = short_text(json, "reason");
  report.origin = short_text(json, "origin");
  report.num_nodes = int_field(json, {"nnodes"});
  if (const int wanted = int_field(json, {"wantedNodes"}); wanted > 0) report.wanted_nodes = wanted;
  report.agents = read_agents(json, num_nodes);
  if (const Json* progress = field(json, {"progress"}); progress != nullptr && progress->is_object()) {
    report.progress = read_progress(*progress);
  }
  report.loading = read_loading(json);
  report.metrics = read_metrics(json);
  report.checkpoint_step = count_in(json, {"lastCheckpoint", "step"});
  report.process_restarts = std::clamp<int64_t>(number_field(json, {"restarts"}).value_or(0), 0, kRestartsMax);
  report.failures = read_failures(json);
  if (const int slowest = int_field(json, {"slowest", "rank"}, -1); slowest >= 0) {
    report.slowest = SlowestRank{slowest, int_field(json, {"slowest", "node"}, -1)};
  }
  return report;
}

}  // namespace lockstep::train
