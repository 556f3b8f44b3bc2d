// Formats progress for a terminal and for a log. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/agent/devices.h"
#include "runner/contract/messages.h"

namespace lockstep {

struct ProgressView {
  std::string workload;
  std::string phase;  // shown when there is no progress yet: "starting", "recovering", …
  std::optional<Progress> progress;
  std::vector<GpuUse> gpus;
};

struct ProgressStyle {
  int columns = 80;
  bool color = false;
  bool unicode = false;
};

// One line of at most `columns` columns (escape sequences not counted). Parts that do not fit are left out, the least
// important first: GPUs, share of time waiting for data, epoch, speed, loss, ETA; at last the bar becomes shorter.
std::string render_progress_line(const ProgressView& view, const ProgressStyle& style);

// The same for a log file: no bar, no colours, and nothing left out.
std::string render_plain_line(const ProgressView& view);

// "0:07", "12:34", "3:02:01", "2d 4:00:00".
std::string format_duration(double seconds);
// "950", "12.3k", "4.56M".
std::string format_rate(double per_second);

}  // namespace lockstep
