// The limits of Linux control groups, versions 1 and 2 (kernel: admin-guide/cgroup-v2, cgroup-v1), and the cores and
// the memory that this process may use under them.
// Threads: any. Limits are read anew at each call, because they may change while the process runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The control groups of this process, from /proc/self/cgroup: one path in version 2, one for each controller in version
// 1.
struct CgroupPaths {
  std::string unified;
  std::string cpu;
  std::string memory;
  std::string pids;
};
// Pure. Fields that the text does not name stay empty.
CgroupPaths parse_cgroup_paths(std::string_view text);

// Pure. Cores, from "QUOTA PERIOD" in microseconds (cpu.max, or the two files of version 1). nullopt for "max" or -1.
std::optional<double> cpu_quota(const std::string& text);

class Cgroups {
 public:
  explicit Cgroups(std::filesystem::path root = "/sys/fs/cgroup", const std::string& paths_file = "/proc/self/cgroup");

  [[nodiscard]] bool is_unified() const { return is_unified_; }  // version 2
  // The folders from this process's group up to the root; the tightest limit among them applies. In a container that
  // sees its own group as the root: that folder only.
  [[nodiscard]] std::vector<std::filesystem::path> of_cpu() const { return folders("cpu", paths_.cpu); }
  [[nodiscard]] std::vector<std::filesystem::path> of_memory() const { return folders("memory", paths_.memory); }
  [[nodiscard]] std::vector<std::filesystem::path> of_pids() const { return folders("pids", paths_.pids); }

  // The tightest CPU quota, in cores.
  [[nodiscard]] std::optional<double> cores_allowed() const;
  // The tightest memory limit, in bytes; memory in use is not subtracted.
  [[nodiscard]] std::optional<int64_t> memory_allowed() const;

 private:
  [[nodiscard]] std::vector<std::filesystem::path> folders(const std::string& name, const std::string& group) const;

  std::filesystem::path root_;
  bool is_unified_;
  CgroupPaths paths_;
};

// The cores that the affinity of this thread lets it run on.
int cores_by_affinity();

// Pure. How many threads can run all the time. Fractions of a core are dropped, because all other threads of an
// operator would wait for the one that has only part of a core. At least 1.
int whole_cores(int by_affinity, std::optional<double> quota);

// whole_cores of this machine, now.
int usable_cores();

// The machine's memory, or the control groups' limit if that is lower. Bytes.
int64_t usable_memory_bytes();

}  // namespace lockstep
