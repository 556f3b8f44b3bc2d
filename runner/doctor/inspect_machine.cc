#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>

#include "runner/base/cgroup.h"
#include "runner/base/kernel_file.h"
#include "runner/contract/env_names.h"
#include "runner/doctor/collect.h"
#include "runner/doctor/machine_files.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> limit_of(decltype(RLIMIT_NOFILE) which, bool hard) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return std::nullopt;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(value);
}

// The lowest of the values that `read` returns for the folders; nullopt when it returns none.
template <typename Read>
std::optional<uint64_t> tightest(const std::vector<fs::path>& folders, Read read) {
  std::optional<uint64_t> least;
  for (const fs::path& folder : folders) {
    const std::optional<uint64_t> limit = read(folder);
    if (limit && (!least || *limit < *least)) least = limit;
  }
  return least;
}

// RLIMIT_NPROC counts all threads of the real user. Those in other containers are not in this /proc, so the result may
// be too high. nullopt: no limit; the kernel exempts root.
std::optional<uint64_t> threads_left_to_user() {
  const std::optional<uint64_t> limit = limit_of(RLIMIT_NPROC, false);
  const uid_t user = ::getuid();
  if (!limit || user == 0) return std::nullopt;
  uint64_t running = 0;
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error)) {
    if (std::isdigit(static_cast<unsigned char>(at->path().filename().string().front())) == 0) continue;
    running += threads_of_user(read_kernel_file(at->path() / "status"), user);
  }
  return *limit - std::min(*limit, running);
}

void inspect_cgroup(MachineFacts& facts) {
  const Cgroups groups;
  facts.cores_allowed = groups.cores_allowed();
  const bool is_unified = groups.is_unified();
  facts.memory_left_bytes = tightest(groups.of_memory(), [&](const fs::path& folder) {
    return memory_left(read_kernel_file(folder / (is_unified ? "memory.max" : "memory.limit_in_bytes")),
                       read_kernel_file(folder / (is_unified ? "memory.current" : "memory.usage_in_bytes")),
                       read_kernel_file(folder / "memory.stat"));
  });
  // The same formula; pids.max and pids.current have the same form, and there is no cache.
  const std::optional<uint64_t> pids_left = tightest(groups.of_pids(), [&](const fs::path& folder) {
    return memory_left(read_kernel_file(folder / "pids.max"), read_kernel_file(folder / "pids.current"), "");
  });
  facts.threads_left = threads_left_to_user();
  if (pids_left) facts.threads_left = std::min(*pids_left, facts.threads_left.value_or(*pids_left));
}

void inspect_shm(MachineFacts& facts) {
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

MachineFacts inspect_machine(const Environment& environment) {
  MachineFacts facts;
  facts.cores = cores_by_affinity();
  utsname system{};
  if (::uname(&system) == 0) facts.architecture = system.machine;
  facts.has_avx2 = has_cpu_flag(read_kernel_file("/proc/cpuinfo"), "avx2");
  facts.memory_bytes = available_memory(read_kernel_file("/proc/meminfo"));
  inspect_cgroup(facts);
  inspect_shm(facts);
  facts.files_max = limit_of(RLIMIT_NOFILE, false).value_or(UINT64_MAX);
  facts.files_hard_max = limit_of(RLIMIT_NOFILE, true).value_or(UINT64_MAX);
  facts.locked_max = limit_of(RLIMIT_MEMLOCK, false);
  facts.has_infiniband = has_files("/sys/class/infiniband");
  facts.now = std::time(nullptr);
  facts.program_time = time_of_own_program();
  std::error_code error;
  facts.is_pod = environment.contains(std::string(env::kKubernetesServiceHost));
  if (facts.is_pod) facts.trainjob = variable(environment, env::kJob);
  facts.is_container = facts.is_pod || fs::exists("/.dockerenv", error) || fs::exists("/run/.containerenv", error);
  return facts;
}

}  // namespace lockstep::doctor
