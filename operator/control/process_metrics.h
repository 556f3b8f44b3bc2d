// ProcessMetrics: the process_* families that Prometheus' own client libraries export, read from /proc/self.
// Threads: safe from all threads.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <string_view>
#include <vector>

namespace lockstep::control {

struct ProcessFigures {
  double cpu_seconds = 0;
  double start_ticks = 0;  // since the machine's start
  double virtual_bytes = 0;
  double resident_bytes = 0;
};
// From /proc/PID/stat; zeros for a line that is none.
ProcessFigures parse_process_stat(std::string_view line, double ticks_per_second, double page_bytes);

class ProcessMetrics : public prometheus::Collectable {
 public:
  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace lockstep::control
