#include "runner/base/cgroup.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <thread>
#include <utility>

#include "runner/base/json.h"
#include "runner/base/kernel_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool has_word(const std::string& list, std::string_view word) {
  const std::string between = "," + list + ",";
  return between.find("," + std::string(word) + ",") != std::string::npos;
}

}  // namespace

CgroupPaths parse_cgroup_paths(std::string_view text) {
  CgroupPaths paths;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) paths.unified = group;
    if (has_word(controllers, "cpu")) paths.cpu = group;
    if (has_word(controllers, "memory")) paths.memory = group;
    if (has_word(controllers, "pids")) paths.pids = group;
  }
  return paths;
}

std::optional<double> cpu_quota(const std::string& text) {
  std::istringstream stream(text);
  std::string quota_word;
  std::string period_word;
  std::string rest;
  stream >> quota_word >> period_word;
  if (stream >> rest) return std::nullopt;
  const std::optional<int64_t> quota = parse_number(quota_word);
  const std::optional<int64_t> period = parse_number(period_word);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

Cgroups::Cgroups(fs::path root, const std::string& paths_file)
    : root_(std::move(root)), paths_(parse_cgroup_paths(read_kernel_file(paths_file))) {
  std::error_code error;
  is_unified_ = fs::exists(root_ / "cgroup.controllers", error);
}

std::vector<fs::path> Cgroups::folders(const std::string& name, const std::string& group) const {
  const fs::path mount = is_unified_ ? root_ : root_ / name;
  fs::path relative = fs::path(is_unified_ ? paths_.unified : group).relative_path();
  std::vector<fs::path> found;
  std::error_code error;
  while (true) {
    const fs::path folder = relative.empty() ? mount : mount / relative;
    if (fs::is_directory(folder, error)) found.push_back(folder);
    if (relative.empty()) return found;
    relative = relative.parent_path();
  }
}

std::optional<double> Cgroups::cores_allowed() const {
  std::optional<double> least;
  for (const fs::path& folder : of_cpu()) {
    const std::optional<double> quota = is_unified_ ? cpu_quota(read_kernel_file(folder / "cpu.max"))
                                                    : cpu_quota(read_kernel_file(folder / "cpu.cfs_quota_us") + " " +
                                                                read_kernel_file(folder / "cpu.cfs_period_us"));
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

std::optional<int64_t> Cgroups::memory_allowed() const {
  std::optional<int64_t> least;
  for (const fs::path& folder : of_memory()) {
    const std::string text = read_kernel_file(folder / (is_unified_ ? "memory.max" : "memory.limit_in_bytes"));
    int64_t limit = 0;  // no limit: "max", which is not parsed; in version 1 a number larger than any machine's memory
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (error == std::errc() && end != text.data() && (!least || limit < *least)) least = limit;
  }
  return least;
}

int cores_by_affinity() {
  cpu_set_t set;
  // sched_getaffinity fails on a machine with more than CPU_SETSIZE cores.
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int whole_cores(int by_affinity, std::optional<double> quota) {
  constexpr double kRounding = 0.01;  // a quota of 1.999 is two cores
  const int by_quota =
      quota ? static_cast<int>(std::min(*quota + kRounding, static_cast<double>(by_affinity))) : by_affinity;
  return std::max(1, std::min(by_affinity, by_quota));
}

int usable_cores() { return whole_cores(cores_by_affinity(), Cgroups().cores_allowed()); }

int64_t usable_memory_bytes() {
  const int64_t machine = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  return std::min(machine, Cgroups().memory_allowed().value_or(machine));
}

}  // namespace lockstep
