#include "operator/control/process_metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>

#include "runner/base/kernel_file.h"

namespace lockstep::control {

namespace {

// Unix time at which the machine was started; 0: unknown.
double boot_time() {
  std::istringstream stat(read_kernel_file("/proc/stat"));
  for (std::string line; std::getline(stat, line);) {
    if (line.starts_with("btime ")) return std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

double open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  // The descriptor by which the folder is read does not count.
  return error ? 0 : static_cast<double>(std::distance(begin(files), end(files)) - 1);
}

prometheus::MetricFamily family(const char* name, const char* help, prometheus::MetricType type, double value) {
  prometheus::ClientMetric metric;
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return {name, help, type, {metric}};
}

}  // namespace

ProcessFigures parse_process_stat(std::string_view line, double ticks_per_second, double page_bytes) {
  // The second field is the program's name in parentheses, which may hold anything; numbers follow (proc(5)).
  const size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos) return {};
  std::istringstream rest{std::string(line.substr(name_end + 1))};
  std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  constexpr size_t kFirst = 3;  // of proc(5) that `fields` begins with
  constexpr size_t kResident = 24;
  if (fields.size() <= kResident - kFirst) return {};
  const auto number = [&](size_t field) { return std::strtod(fields[field - kFirst].c_str(), nullptr); };
  return {.cpu_seconds = (number(14) + number(15)) / ticks_per_second,
          .start_ticks = number(22),
          .virtual_bytes = number(23),
          .resident_bytes = number(kResident) * page_bytes};
}

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  const ProcessFigures figures = parse_process_stat(read_kernel_file("/proc/self/stat"), ticks_per_second, page_bytes);
  using Type = prometheus::MetricType;
  return {
      family("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", Type::Counter,
             figures.cpu_seconds),
      family("process_open_fds", "Number of open file descriptors.", Type::Gauge, open_files()),
      family("process_resident_memory_bytes", "Resident memory size in bytes.", Type::Gauge, figures.resident_bytes),
      family("process_virtual_memory_bytes", "Virtual memory size in bytes.", Type::Gauge, figures.virtual_bytes),
      family("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", Type::Gauge,
             boot_time() + figures.start_ticks / ticks_per_second),
  };
}

}  // namespace lockstep::control
