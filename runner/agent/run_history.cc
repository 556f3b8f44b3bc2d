#include "runner/agent/run_history.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {
namespace {

constexpr int64_t kStepMax = int64_t{1} << 53;  // JavaScript numbers are exact up to here

std::optional<int64_t> integer_of(const Json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

bool is_step(int64_t step) { return step >= 0 && step <= kStepMax; }

// A line's JSON object and its step.
struct Line {
  Json fields;
  int64_t step = 0;
};
std::optional<Line> parse_line(std::string_view text) {
  Result<Json> parsed = parse_json(text, "line");
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const std::optional<int64_t> step = integer_of(*parsed, "step");
  if (!step || !is_step(*step)) return std::nullopt;
  return Line{.fields = std::move(*parsed), .step = *step};
}

std::string string_of(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_figure(const std::string& name, const Json& value) {
  return value.is_number() && name != "step" && name != "epoch" && name != "samples" && name != "time";
}

// Keeps of the points in [from, to) those with the lowest and the highest value, in the order of their steps.
void keep_extremes(const std::vector<HistoryPoint>& points, size_t from, size_t to, std::vector<HistoryPoint>& kept) {
  const auto begin = points.begin() + static_cast<std::ptrdiff_t>(from);
  const auto end = points.begin() + static_cast<std::ptrdiff_t>(to);
  auto [low, high] =
      std::minmax_element(begin, end, [](const HistoryPoint& a, const HistoryPoint& b) { return a.value < b.value; });
  if (high < low) std::swap(low, high);
  kept.push_back(*low);
  if (high != low) kept.push_back(*high);
}

}  // namespace

std::vector<HistoryPoint> thinned(std::vector<HistoryPoint> points) {
  if (points.size() <= kSeriesPointsMax) return points;
  const size_t old_end = points.size() - kNewestPointsKept;
  std::vector<HistoryPoint> kept{points.front()};
  const int64_t first_step = points[1].step;
  // Rounded up, so that the ranges cover the last old step.
  const int64_t steps = points[old_end - 1].step - first_step + 1;
  const int64_t stretch = (steps + int64_t{kThinningBuckets} - 1) / int64_t{kThinningBuckets};
  for (size_t from = 1; from < old_end;) {
    const int64_t bucket = (points[from].step - first_step) / stretch;
    size_t to = from + 1;
    while (to < old_end && (points[to].step - first_step) / stretch == bucket) ++to;
    keep_extremes(points, from, to, kept);
    from = to;
  }
  kept.insert(kept.end(), points.begin() + static_cast<std::ptrdiff_t>(old_end), points.end());
  return kept;
}

void RunHistory::add_metrics_line(std::string_view text) {
  const std::optional<Line> line = parse_line(text);
  if (!line) return count_bad_line();
  const bool is_evaluation = line->fields.contains("evaluation");
  drop_redone(line->step);
  for (const auto& [name, value] : line->fields.items()) {
    if (is_figure(name, value)) add_point(name, is_evaluation, {.step = line->step, .value = value.get<double>()});
  }
}

void RunHistory::add_figures(const StepFigures& figures) {
  if (!is_step(figures.step)) return;
  drop_redone(figures.step);
  for (const auto& [name, value] : figures.values) {
    if (std::isfinite(value)) add_point(name, false, {.step = figures.step, .value = value});
  }
}

// The step's own points stay until they are replaced, because its figures may come in several parts: an evaluation
// before or after the line of its step, or the figures of several calls.
void RunHistory::drop_redone(int64_t step) {
  for (HistorySeries& series : series_) {
    while (!series.points.empty() && series.points.back().step > step) series.points.pop_back();
  }
}

void RunHistory::add_point(const std::string& name, bool is_evaluation, HistoryPoint point) {
  auto found = std::find_if(series_.begin(), series_.end(), [&](const HistorySeries& series) {
    return series.is_evaluation == is_evaluation && series.name == name;
  });
  if (found == series_.end()) {
    if (series_.size() >= kSeriesMax) return;
    series_.push_back({.name = name, .is_evaluation = is_evaluation, .points = {}});
    found = std::prev(series_.end());
  }
  if (!found->points.empty() && found->points.back().step == point.step) found->points.pop_back();
  found->points.push_back(point);
  found->points = thinned(std::move(found->points));
}

void RunHistory::add_recovery_line(std::string_view text) {
  const std::optional<Line> line = parse_line(text);
  if (!line) return count_bad_line();
  const Json& fields = line->fields;
  HistoryMark mark{.step = line->step,
                   .cause = string_of(fields, "cause"),
                   .total_seconds = std::nullopt,
                   .origin = string_of(fields, "origin"),
                   .unix_seconds = integer_of(fields, "time")};
  if (const auto seconds = fields.find("totalSeconds"); seconds != fields.end() && seconds->is_number()) {
    mark.total_seconds = seconds->get<double>();
  }
  if (mark.cause.empty() && integer_of(fields, "resumedStep").value_or(0) == 0) return marks_.clear();
  marks_.push_back(std::move(mark));
  if (marks_.size() > kHistoryMarksMax) marks_.pop_front();
}

OrderedJson to_json(const RunHistory& history) {
  OrderedJson series = OrderedJson::array();
  for (const HistorySeries& s : history.series()) {
    OrderedJson points = OrderedJson::array();
    for (const HistoryPoint& point : s.points) points.push_back(OrderedJson::array({point.step, point.value}));
    series.push_back({{"name", s.name}, {"evaluation", s.is_evaluation}, {"points", std::move(points)}});
  }
  OrderedJson marks = OrderedJson::array();
  for (const HistoryMark& mark : history.marks()) {
    marks.push_back({{"step", mark.step},
                     {"cause", mark.cause.empty() ? OrderedJson(nullptr) : OrderedJson(mark.cause)},
                     {"totalSeconds", mark.total_seconds ? OrderedJson(*mark.total_seconds) : OrderedJson(nullptr)},
                     {"origin", mark.origin},
                     {"time", mark.unix_seconds ? OrderedJson(*mark.unix_seconds) : OrderedJson(nullptr)}});
  }
  return {{"series", std::move(series)}, {"marks", std::move(marks)}, {"badLines", history.bad_lines()}};
}

std::string recovery_line(const Recovery& recovery) { return dump_line(to_json(recovery)); }

std::string start_line(const Resumed& resumed, int world_size, int64_t unix_seconds) {
  return dump_line(OrderedJson{{"step", resumed.step},
                               {"resumedStep", resumed.resumed_step},
                               {"worldSize", world_size},
                               {"origin", resumed.origin},
                               {"generation", resumed.generation},
                               {"time", unix_seconds}});
}

}  // namespace lockstep
