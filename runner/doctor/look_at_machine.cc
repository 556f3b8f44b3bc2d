#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runner/contract/env_names.h"
#include "runner/doctor/collect.h"
#include "runner/doctor/machine_files.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<uint64_t> limit_of(decltype(RLIMIT_NOFILE) which, bool hard) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return std::nullopt;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(value);
}

int cores_allowed_by_affinity() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// From this process's own group up to the root the tightest counts.
template <typename T, typename Read>
std::optional<T> tightest(const std::vector<fs::path>& folders, Read read) {
  std::optional<T> least;
  for (const fs::path& folder : folders) {
    const std::optional<T> limit = read(folder);
    if (limit && (!least || *limit < *least)) least = limit;
  }
  return least;
}

std::vector<fs::path> with_parents(const fs::path& mount, const std::string& group) {
  std::vector<fs::path> folders;
  std::error_code error;
  fs::path relative = fs::path(group).relative_path();
  while (true) {
    const fs::path folder = relative.empty() ? mount : mount / relative;
    if (fs::is_directory(folder, error)) folders.push_back(folder);
    if (relative.empty()) return folders;
    relative = relative.parent_path();
  }
}

void look_at_cgroup(MachineFacts& facts) {
  const CgroupPlace place = parse_cgroup_place(read_text("/proc/self/cgroup"));
  const fs::path root = "/sys/fs/cgroup";
  std::error_code error;
  const bool is_unified = fs::exists(root / "cgroup.controllers", error);
  const auto folders = [&](const std::string& name, const std::string& group) {
    return is_unified ? with_parents(root, place.unified) : with_parents(root / name, group);
  };
  facts.cores_allowed = tightest<double>(folders("cpu", place.cpu), [&](const fs::path& folder) {
    return is_unified
               ? cpu_quota(read_text(folder / "cpu.max"))
               : cpu_quota(read_text(folder / "cpu.cfs_quota_us") + " " + read_text(folder / "cpu.cfs_period_us"));
  });
  facts.memory_left_bytes = tightest<uint64_t>(folders("memory", place.memory), [&](const fs::path& folder) {
    return memory_left(read_text(folder / (is_unified ? "memory.max" : "memory.limit_in_bytes")),
                       read_text(folder / (is_unified ? "memory.current" : "memory.usage_in_bytes")),
                       read_text(folder / "memory.stat"));
  });
  const std::optional<uint64_t> pids_left =
      tightest<uint64_t>(folders("pids", place.pids), [&](const fs::path& folder) {
        return memory_left(read_text(folder / "pids.max"), read_text(folder / "pids.current"), "");
      });
  facts.threads_left = limit_of(RLIMIT_NPROC, false);
  if (pids_left) facts.threads_left = std::min(*pids_left, facts.threads_left.value_or(*pids_left));
}

void look_at_shm(MachineFacts& facts) {
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) != 0) return;
  facts.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  facts.shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
}

int64_t time_of_own_program() {
  std::error_code error;
  const auto written = fs::last_write_time("/proc/self/exe", error);
  if (error) return 0;
  const auto on_system_clock = std::chrono::file_clock::to_sys(written);
  return std::chrono::duration_cast<std::chrono::seconds>(on_system_clock.time_since_epoch()).count();
}

bool has_files(const fs::path& folder) {
  std::error_code error;
  return fs::directory_iterator(folder, error) != fs::directory_iterator();
}

}  // namespace

MachineFacts look_at_machine(const Environment& environment) {
  MachineFacts facts;
  facts.cores = cores_allowed_by_affinity();
  utsname system{};
  if (::uname(&system) == 0) facts.architecture = system.machine;
  facts.has_avx2 = has_cpu_flag(read_text("/proc/cpuinfo"), "avx2");
  facts.memory_bytes = available_memory(read_text("/proc/meminfo"));
  look_at_cgroup(facts);
  look_at_shm(facts);
  facts.files_max = limit_of(RLIMIT_NOFILE, false).value_or(UINT64_MAX);
  facts.files_hard_max = limit_of(RLIMIT_NOFILE, true).value_or(UINT64_MAX);
  facts.locked_max = limit_of(RLIMIT_MEMLOCK, false);
  facts.has_infiniband = has_files("/sys/class/infiniband");
  facts.now = std::time(nullptr);
  facts.program_time = time_of_own_program();
  std::error_code error;
  facts.is_pod = environment.contains(std::string(env::kKubernetesServiceHost));
  facts.is_container = facts.is_pod || fs::exists("/.dockerenv", error) || fs::exists("/run/.containerenv", error);
  return facts;
}

}  // namespace lockstep::doctor
