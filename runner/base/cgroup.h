// What Linux's control groups leave this process, in versions 1 and 2 (kernel: admin-guide/cgroup-v2, cgroup-v1), and
// how many cores that makes with its affinity, and how much memory.
// Threads: any. Nothing is kept: a limit may be changed while the process runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Where this process is, from /proc/self/cgroup: in the one tree of version 2, or in those of version 1.
struct CgroupPlace {
  std::string unified;
  std::string cpu;
  std::string memory;
  std::string pids;
};
// Pure. Text that says nothing gives nothing.
CgroupPlace parse_cgroup_place(std::string_view text);

// Pure. Cores, from "QUOTA PERIOD" in microseconds: cpu.max, or the two files of version 1. None: "max", -1.
std::optional<double> cpu_quota(const std::string& text);

class Cgroups {
 public:
  explicit Cgroups(std::filesystem::path root = "/sys/fs/cgroup", const std::string& place_file = "/proc/self/cgroup");

  [[nodiscard]] bool is_unified() const { return is_unified_; }  // version 2
  // From this process's own group up to the root; of them all the tightest limit counts. Within a container that shows
  // its own group as the root, just that.
  [[nodiscard]] std::vector<std::filesystem::path> of_cpu() const { return folders("cpu", place_.cpu); }
  [[nodiscard]] std::vector<std::filesystem::path> of_memory() const { return folders("memory", place_.memory); }
  [[nodiscard]] std::vector<std::filesystem::path> of_pids() const { return folders("pids", place_.pids); }

  // The tightest CPU quota, in cores.
  [[nodiscard]] std::optional<double> cores_allowed() const;
  // The tightest memory limit, in bytes, whatever is in use of it.
  [[nodiscard]] std::optional<int64_t> memory_allowed() const;

 private:
  [[nodiscard]] std::vector<std::filesystem::path> folders(const std::string& name, const std::string& group) const;

  std::filesystem::path root_;
  bool is_unified_;
  CgroupPlace place_;
};

// The cores that the affinity of this thread lets it run on.
int cores_by_affinity();

// Pure. How many threads can run all the time: whole cores, since one thread without a core holds up all that wait for
// it. At least 1.
int whole_cores(int by_affinity, std::optional<double> quota);

// whole_cores of this machine, now.
int usable_cores();

// The machine's memory, or less where a control group allows less. Bytes.
int64_t usable_memory_bytes();

}  // namespace lockstep
