#include "runner/agent/progress_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace lockstep {
namespace {

constexpr int kBarColumnsMax = 30;
constexpr int kBarColumnsMin = 8;
constexpr double kBytesPerGib = 1024.0 * 1024.0 * 1024.0;

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

double fraction_done(const Progress& p) {
  if (p.total_steps <= 0) return 0.0;
  return std::clamp(static_cast<double>(p.step) / static_cast<double>(p.total_steps), 0.0, 1.0);
}

std::string step_segment(const Progress& p) {
  std::string text = "step " + std::to_string(p.step);
  if (p.total_steps > 0) text += "/" + std::to_string(p.total_steps);
  return text;
}

std::string gpu_segment(const GpuUse& gpu) {
  return format("GPU%d %.1f/%.1f GiB %d%%", gpu.index, static_cast<double>(gpu.memory_used_bytes) / kBytesPerGib,
                static_cast<double>(gpu.memory_total_bytes) / kBytesPerGib, gpu.utilisation_percent);
}

// A segment of the line after the bar. `rank`: when the line is too long, segments with a higher rank are dropped
// first.
struct Segment {
  std::string text;
  int rank;  // 0 is dropped last
};

std::vector<Segment> segments_of(const ProgressView& view) {
  const Progress& p = *view.progress;
  std::vector<Segment> segments{{step_segment(p), 0}};
  if (p.num_epochs > 0) {
    segments.push_back(
        {"epoch " + std::to_string(std::min(p.epoch + 1, p.num_epochs)) + "/" + std::to_string(p.num_epochs), 4});
  }
  if (std::isfinite(p.loss)) segments.push_back({format("loss %.4f", p.loss), 2});
  if (p.samples_per_second > 0) segments.push_back({format_rate(p.samples_per_second) + " samples/s", 3});
  if (!(p.samples_per_second > 0) && p.steps_per_second > 0) {
    segments.push_back({format(p.steps_per_second < 10 ? "%.2f" : "%.0f", p.steps_per_second) + " steps/s", 3});
  }
  if (p.eta_seconds >= 0 && std::isfinite(p.eta_seconds))
    segments.push_back({"ETA " + format_duration(p.eta_seconds), 1});
  if (p.data_wait_ratio >= 0 && std::isfinite(p.data_wait_ratio)) {
    segments.push_back({format("data wait %.0f%%", p.data_wait_ratio * 100), 5});
  }
  for (const GpuUse& gpu : view.gpus) segments.push_back({gpu_segment(gpu), 6});
  return segments;
}

int columns_of(const std::vector<Segment>& segments) {
  int columns = 0;
  for (const Segment& segment : segments) columns += 2 + static_cast<int>(segment.text.size());
  return columns;
}

std::string bar(double fraction, int columns, const ProgressStyle& style) {
  const int filled = static_cast<int>(std::lround(fraction * columns));
  std::string text = style.color ? "\033[36m" : "";
  for (int i = 0; i < filled; ++i) text += style.unicode ? "━" : "#";
  if (style.color) text += "\033[90m";
  for (int i = filled; i < columns; ++i) text += style.unicode ? (style.color ? "━" : "─") : "-";
  return text + (style.color ? "\033[0m" : "");
}

std::string text_of(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += "  " + segment.text;
  return text;
}

}  // namespace

std::string render_progress_line(const ProgressView& view, const ProgressStyle& style) {
  const auto columns = static_cast<size_t>(std::max(style.columns, 1));
  if (!view.progress) return (view.workload + "  " + view.phase).substr(0, columns);
  std::vector<Segment> segments = segments_of(view);
  if (view.progress->total_steps <= 0) return (view.workload + text_of(segments)).substr(0, columns);
  const std::string percent = format("%3.0f%%", std::floor(fraction_done(*view.progress) * 100));
  const int fixed = static_cast<int>(view.workload.size() + 2 + 1 + percent.size());  // workload, bar, space, percent
  while (segments.size() > 1 && fixed + kBarColumnsMin + columns_of(segments) > style.columns) {
    // Of segments with the same rank the last one is dropped first.
    const auto least = std::max_element(segments.rbegin(), segments.rend(),
                                        [](const Segment& a, const Segment& b) { return a.rank < b.rank; });
    segments.erase(std::next(least).base());
  }
  const int room = style.columns - fixed - columns_of(segments);
  if (room < kBarColumnsMin) return (percent + text_of(segments)).substr(0, columns);
  return view.workload + "  " + bar(fraction_done(*view.progress), std::min(room, kBarColumnsMax), style) + " " +
         percent + text_of(segments);
}

std::string render_plain_line(const ProgressView& view) {
  if (!view.progress) return view.workload + ": " + view.phase;
  if (view.progress->total_steps <= 0) return view.workload + ":" + text_of(segments_of(view));
  return view.workload + ": " + format("%.0f%%", std::floor(fraction_done(*view.progress) * 100)) +
         text_of(segments_of(view));
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::clamp(seconds, 0.0, 1e12)));
  const long long days = total / 86400;
  const long long hours = total / 3600 % 24;
  const long long minutes = total / 60 % 60;
  std::string text = days > 0 ? std::to_string(days) + "d " : "";
  if (total >= 3600) return text + format("%lld:%02lld:%02lld", hours, minutes, total % 60);
  return format("%lld:%02lld", minutes, total % 60);
}

std::string format_rate(double per_second) {
  if (per_second < 100) return format("%.1f", per_second);
  if (per_second < 10'000) return format("%.0f", per_second);
  if (per_second < 1e6) return format("%.1fk", per_second / 1e3);
  return format("%.2fM", per_second / 1e6);
}

}  // namespace lockstep
