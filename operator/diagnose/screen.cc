#include "operator/diagnose/screen.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "runner/base/json.h"
#include "runner/base/utf8.h"

namespace lockstep::diagnose {
namespace {

using api::UnixSeconds;

constexpr size_t kTimelineEntriesMax = 10;
constexpr size_t kPodsMax = 8;
constexpr size_t kWidthMin = 40;
constexpr size_t kTextBytesMax = 400;  // of one entry or detail: a termination message may be pages

// Text from pods must not contain control characters for the terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return text;
}

class Screen {
 public:
  explicit Screen(const ScreenOptions& options) : options_(options), width_(std::max(options.width, kWidthMin)) {}

  std::string text() && { return std::move(out_); }

  void heading(const std::string& text) { out_.append("\n").append(painted("1", text)).append("\n"); }
  void line(const std::string& text) { out_.append(text).append("\n"); }

  // Wraps `text`. The first line begins with `first`, the others with as many blanks.
  void prose(const std::string& first, const std::string& text, const std::string& colour = "") {
    const std::string indent(num_characters(first), ' ');
    std::string current = first;
    bool has_words = false;
    std::istringstream words(printable(shortened(text, kTextBytesMax)));
    for (std::string word; words >> word;) {
      if (has_words && num_characters(current) + 1 + num_characters(word) > width_) {
        line(painted(colour, current));
        current = indent;
        has_words = false;
      }
      current.append(has_words ? " " : "").append(word);
      has_words = true;
    }
    line(painted(colour, current));
  }

 private:
  std::string painted(const std::string& colour, const std::string& text) const {
    return options_.colours && !colour.empty() ? "\033[" + colour + "m" + text + "\033[0m" : text;
  }

  const ScreenOptions& options_;
  const size_t width_;
  std::string out_;
};

// "10:02:13"; of another day with its date.
std::string clock_text(UnixSeconds time, UnixSeconds now) {
  const std::string text = api::format_time(time);  // 2026-11-21T10:00:00Z
  const bool is_today = text.substr(0, 10) == api::format_time(now).substr(0, 10);
  return is_today ? text.substr(11, 8) : text.substr(5, 5) + " " + text.substr(11, 5);
}

std::string padded(std::string text, size_t width) {
  text.append(width - std::min(width, num_characters(text)), ' ');
  return text;
}

void show_timeline(const std::vector<TimelineEntry>& all, UnixSeconds now, Screen& screen) {
  if (all.empty()) return;
  screen.heading("What happened (UTC)");
  size_t width = 0;
  for (const TimelineEntry& one : all) width = std::max(width, clock_text(one.time, now).size());
  const size_t skipped = all.size() > kTimelineEntriesMax ? all.size() - kTimelineEntriesMax : 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && i <= skipped) continue;  // the beginning stays
    const std::string time = padded(clock_text(all[i].time, now), width);
    const std::string age = padded(api::format_duration(now - all[i].time) + " ago", 11);
    screen.prose("  " + time + "  " + age + "  ", all[i].text, all[i].is_bad ? "31" : "");
    if (i == 0 && skipped > 0)
      screen.line("  " + std::string(width, ' ') + "  … " + std::to_string(skipped) + " more …");
  }
}

void show_pods(std::vector<PodRow> pods, Screen& screen) {
  if (pods.empty()) return;
  std::stable_partition(pods.begin(), pods.end(), [](const PodRow& row) { return !row.is_well; });
  const size_t left_out = pods.size() > kPodsMax ? pods.size() - kPodsMax : 0;
  pods.resize(pods.size() - left_out);
  std::vector<std::vector<std::string>> rows = {{"POD", "NAME", "NODE", "STATE"}};
  for (const PodRow& row : pods) {
    rows.push_back({std::to_string(row.node_rank), row.name.empty() ? "-" : row.name, row.node.empty() ? "-" : row.node,
                    printable(row.state)});
  }
  screen.line("");
  std::string text = table_text(rows, "  ");
  text.pop_back();
  screen.line(text);
  if (left_out > 0) screen.line("  … and " + std::to_string(left_out) + " more");
}

void show_advice(const std::vector<Advice>& advice, Screen& screen) {
  if (advice.empty()) return;
  screen.heading("What to do");
  for (const Advice& one : advice) {
    screen.prose("  - ", one.text);
    if (!one.command.empty()) screen.line("      " + one.command);
  }
}

}  // namespace

std::string table_text(const std::vector<std::vector<std::string>>& rows, const std::string& indent) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], num_characters(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    text += indent;
    for (size_t i = 0; i + 1 < row.size(); ++i) text += padded(row[i], widths[i] + 3);
    text.append(row.back()).append("\n");
  }
  return text;
}

std::string to_screen(const Diagnosis& diagnosis, const ScreenOptions& options) {
  Screen screen(options);
  std::string verdict = diagnosis.verdict;
  if (!verdict.empty() && verdict.front() >= 'a' && verdict.front() <= 'z') {
    verdict.front() = static_cast<char>(verdict.front() - 'a' + 'A');
  }
  screen.prose("", verdict, diagnosis.is_well ? "32" : "1;31");
  for (const std::string& detail : diagnosis.details) screen.prose("  ", detail);
  show_timeline(diagnosis.timeline, options.now, screen);
  show_pods(diagnosis.pods, screen);
  if (!diagnosis.log.empty()) {
    screen.heading("Last lines of " + diagnosis.log_pod);
    for (const std::string& line : diagnosis.log) screen.line("  " + printable(shortened(line, kTextBytesMax)));
  }
  show_advice(diagnosis.advice, screen);
  for (const std::string& note : diagnosis.notes) screen.prose("note: ", note);
  return std::move(screen).text();
}

std::string jobs_table(const std::vector<Json>& jobs, bool with_namespace, UnixSeconds now) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "PHASE", "READY", "STEP", "PROGRESS", "LEFT", "RESTARTS", "AGE", "WHY"}};
  if (with_namespace) rows.front().insert(rows.front().begin(), "NAMESPACE");
  for (const Json& job : jobs) {
    const auto text = [&](std::initializer_list<std::string_view> path) {
      const std::string found = text_field(job, path);
      return found.empty() ? std::string("-") : printable(found);
    };
    const auto number = [&](std::initializer_list<std::string_view> path) {
      const std::optional<int64_t> found = number_field(job, path);
      return found ? std::to_string(*found) : std::string("-");
    };
    const std::optional<UnixSeconds> created = api::parse_time(text_field(job, {"metadata", "creationTimestamp"}));
    std::vector<std::string> row = {text({"metadata", "name"}),
                                    text({"status", "phase"}),
                                    text({"status", "nodes", "summary"}),
                                    number({"status", "progress", "step"}),
                                    text({"status", "progress", "summary"}),
                                    text({"status", "progress", "eta"}),
                                    number({"status", "restarts", "total"}),
                                    created ? api::format_duration(now - *created) : "-",
                                    text({"status", "reason"})};
    if (with_namespace) row.insert(row.begin(), text({"metadata", "namespace"}));
    rows.push_back(std::move(row));
  }
  return table_text(rows, "");
}

}  // namespace lockstep::diagnose
