#include "runner/doctor/report.h"

#include <algorithm>
#include <sstream>

#include "runner/base/json.h"
#include "runner/base/shell_word.h"
#include "runner/base/utf8.h"

namespace lockstep::doctor {
namespace {

constexpr size_t kVerdictWidth = 6;
constexpr size_t kTextWidthMin = 30;
constexpr const char* kBold = "1";

std::string colored(const std::string& text, const char* code, bool color) {
  if (!color) return text;
  return std::string("\033[").append(code).append("m").append(text).append("\033[0m");
}

const char* color_of(Verdict verdict) {
  if (verdict == Verdict::kFail) return "1;31";
  return verdict == Verdict::kWarn ? "33" : "32";
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

// Breaks the text between words; the lines after the first are indented.
std::string wrapped(const std::string& text, size_t width, size_t indent) {
  std::istringstream words(text);
  std::string result;
  size_t at = 0;
  for (std::string word; words >> word;) {
    const size_t word_width = num_characters(word);
    if (at > 0 && at + 1 + word_width > width) {
      result.append("\n").append(indent, ' ');
      at = 0;
    }
    result.append(at > 0 ? " " : "").append(word);
    at += word_width + (at > 0 ? 1 : 0);
  }
  return result;
}

size_t count(const std::vector<Check>& checks, Verdict verdict) {
  return static_cast<size_t>(
      std::count_if(checks.begin(), checks.end(), [verdict](const Check& check) { return check.verdict == verdict; }));
}

std::string next_step(const std::vector<Check>& checks, const Facts& facts) {
  if (count(checks, Verdict::kFail) > 0) return "Fix what failed, then run lockstep doctor again.";
  std::string command = "lockstep run sasrec --dataset ";
  command.append(facts.request.data.empty() ? "auto" : shell_word(facts.request.data));
  if (facts.request.nproc) command.append(" --nproc ").append(std::to_string(*facts.request.nproc));
  return "Ready: " + command;
}

}  // namespace

std::string report_text(const std::vector<Check>& checks, const Facts& facts, ReportStyle style) {
  size_t name_width = 0;
  for (const Check& check : checks) {
    if (check.verdict != Verdict::kSkip) name_width = std::max(name_width, check.name.size());
  }
  const size_t indent = 2 + kVerdictWidth + name_width + 2;
  const auto columns = static_cast<size_t>(std::max(style.columns, 0));
  const size_t width = std::max(kTextWidthMin, columns - std::min(indent, columns));
  std::string text = "lockstep " + facts.version + " on " + facts.network.host_name + "\n";
  std::string group;
  for (const Check& check : checks) {
    if (check.verdict == Verdict::kSkip) continue;
    if (check.group != group) text.append("\n").append(colored(check.group, kBold, style.color)).append("\n");
    group = check.group;
    const std::string word = check.verdict == Verdict::kFail ? "FAIL" : to_string(check.verdict);
    text.append("  ").append(colored(padded(word, kVerdictWidth), color_of(check.verdict), style.color));
    text.append(padded(check.name, name_width + 2)).append(wrapped(check.found, width, indent)).append("\n");
    if (check.remedy.empty()) continue;
    text.append(indent, ' ').append("→ ").append(wrapped(check.remedy, width - 2, indent + 2)).append("\n");
  }
  const size_t warnings = count(checks, Verdict::kWarn);
  text.append("\n").append(std::to_string(count(checks, Verdict::kOk))).append(" ok, ");
  text.append(std::to_string(warnings)).append(warnings == 1 ? " warning, " : " warnings, ");
  text.append(std::to_string(count(checks, Verdict::kFail))).append(" failed. ");
  return text.append(next_step(checks, facts)).append("\n");
}

std::string report_json(const std::vector<Check>& checks, const Facts& facts) {
  OrderedJson list = OrderedJson::array();
  for (const Check& check : checks) {
    list.push_back(OrderedJson{{"group", check.group},
                               {"name", check.name},
                               {"verdict", to_string(check.verdict)},
                               {"found", check.found},
                               {"remedy", check.remedy}});
  }
  return dump_pretty(OrderedJson{{"version", facts.version},
                                 {"host", facts.network.host_name},
                                 {"ok", exit_code_of(checks) == 0},
                                 {"warnings", count(checks, Verdict::kWarn)},
                                 {"failures", count(checks, Verdict::kFail)},
                                 {"checks", list}});
}

int exit_code_of(const std::vector<Check>& checks) { return count(checks, Verdict::kFail) > 0 ? 1 : 0; }

}  // namespace lockstep::doctor
