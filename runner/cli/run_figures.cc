#include "runner/cli/run_figures.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runner/base/file_system.h"
#include "runner/base/json.h"

namespace lockstep {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{64} << 20;  // the run moves a longer file away when it starts

double number(const OrderedJson& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

int64_t integer(const OrderedJson& line, const char* name) {
  const auto it = line.find(name);
  return it != line.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

LoggedStep logged_step(const OrderedJson& line) {
  return {.step = integer(line, "step"),
          .loss = number(line.at("loss")),
          .samples = integer(line, "samples"),
          .time = line.contains("time") ? number(line.at("time")) : 0.0};
}

LoggedEvaluation logged_evaluation(const OrderedJson& line) {
  LoggedEvaluation evaluation{.step = integer(line, "step"), .epoch = integer(line, "epoch"), .figures = {}};
  for (const auto& [name, value] : line.items()) {
    const bool is_figure = name != "step" && name != "epoch" && name != "evaluation" && name != "time";
    if (is_figure) evaluation.figures.emplace_back(name, number(value));
  }
  return evaluation;
}

}  // namespace

RunFigures parse_run_figures(std::string_view text) {
  RunFigures figures;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const OrderedJson line = OrderedJson::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.is_object() || !line.contains("step")) continue;
    if (line.contains("evaluation")) {
      figures.evaluations.push_back(logged_evaluation(line));
    } else if (line.contains("loss")) {
      figures.steps.push_back(logged_step(line));
    }
  }
  return figures;
}

Result<RunFigures> read_run_figures(FileSystem& fs, const std::string& folder) {
  TRY_ASSIGN(const std::string text, read_file(fs, folder + "/metrics.jsonl", kFileBytesMax));
  return parse_run_figures(text);
}

Result<double> samples_per_second_after(const RunFigures& figures, int64_t warmup_steps) {
  const auto base = std::find_if(figures.steps.begin(), figures.steps.end(),
                                 [warmup_steps](const LoggedStep& line) { return line.step >= warmup_steps; });
  if (base == figures.steps.end() || base + 1 == figures.steps.end()) {
    return Error{ErrorCode::kNotFound, "no lines of two steps after the first " + std::to_string(warmup_steps)};
  }
  const double seconds = figures.steps.back().time - base->time;
  int64_t samples = 0;
  for (auto line = base + 1; line != figures.steps.end(); ++line) samples += line->samples;
  if (seconds > 0.0 && samples > 0) return static_cast<double>(samples) / seconds;
  return Error{ErrorCode::kNotFound, "no samples, or no time between the lines"};
}

}  // namespace lockstep
