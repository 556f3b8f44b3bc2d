#include "runner/cli/own_run.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "runner/base/cgroup.h"
#include "runner/base/fork.h"
#include "runner/base/shell_word.h"
#include "runner/cli/local_nodes.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/doctor/collect.h"

namespace lockstep {
namespace {

constexpr const char* kNowhere = "/dev/null";

// What the operator, agents and launchers write. It speaks of another run, so a run of its own must not read it.
constexpr std::array<std::string_view, 12> kForeignPrefixes = {
    "LOCKSTEP_", "SLURM_", "OMPI_COMM_WORLD_", "PET_", "TORCHELASTIC_", "PMI_", "PMIX_", "PALS_", "MV2_",
    "LWS_",      "VC_",    "SKYPILOT_"};
constexpr std::array kForeignNames = {env::kRank,
                                      env::kWorldSize,
                                      env::kLocalRank,
                                      env::kLocalWorldSize,
                                      env::kMasterAddr,
                                      env::kMasterPort,
                                      env::kGroupRank,
                                      env::kGroupWorldSize,
                                      env::kForeignNodeRank,
                                      env::kForeignNumNodes,
                                      env::kJobCompletionIndex,
                                      env::kKubernetesServiceHost};

bool is_foreign(std::string_view name) {
  return name != env::kWorker &&
         (std::ranges::find(kForeignNames, name) != kForeignNames.end() ||
          std::ranges::any_of(kForeignPrefixes, [name](std::string_view prefix) { return name.starts_with(prefix); }));
}

// The signals that are passed on, and that of a child's end; blocked as long as this lives.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) ::sigaddset(&set_, signal);
    if (!ignores_hangup()) ::sigaddset(&set_, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
    // This process may have inherited that it is ignored; the kernel would then keep no exit code and send no signal.
    ::signal(SIGCHLD, SIG_DFL);
  }
  ~Signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // The child's exit code.
  int wait_for(pid_t pid) const {
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) != pid) {
      int signal = 0;
      if (::sigwait(&set_, &signal) == 0 && signal != SIGCHLD) ::kill(pid, signal);
    }
    return exit_code_of_wait_status(status);
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

}  // namespace

Environment environment_of_own_run(const Environment& environment) {
  Environment own = environment;
  std::erase_if(own, [](const auto& variable) { return is_foreign(variable.first); });
  // In a pod the termination message belongs to the pod's main program, so this run must not write it.
  own[std::string(env::kTerminationLog)] = kNowhere;
  return own;
}

Result<int> run_to_end(const OwnRun& run) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Error{ErrorCode::kUnavailable, "cannot read /proc/self/exe: " + error.message()};
  NodeLaunch launch{.arguments = {}, .environment = run.environment};
  if (run.is_run) launch.arguments.emplace_back("run");
  launch.arguments.insert(launch.arguments.end(), run.arguments.begin(), run.arguments.end());
  const Signals signals;
  const pid_t pid =
      start_agent(program.string(), launch, AgentDescriptors{.stdout_fd = run.stdout_fd, .stderr_fd = run.stderr_fd});
  if (pid < 0) return Error{ErrorCode::kUnavailable, std::string("no process for the run: ") + std::strerror(errno)};
  return signals.wait_for(pid);
}

OwnMachine inspect_own_machine(const Environment& environment, DeviceChoice device) {
  OwnMachine machine{.cores = usable_cores()};
  if (!LOCKSTEP_BUILD_HAS_CUDA || device == DeviceChoice::kCpu) return machine;
  const doctor::DriverFacts driver = doctor::inspect_driver(environment);
  machine.gpus = static_cast<int>(driver.visible.size());
  if (!driver.gpus.empty()) machine.gpu_name = driver.gpus.front().name;
  return machine;
}

std::string command_line_of(const std::string& program, const std::vector<std::string>& words) {
  std::string line = program;
  for (const std::string& word : words) line += " " + shell_word(word);
  return line;
}

std::string program_for_people(const std::string& argv_0) {
  return argv_0.find('/') == std::string::npos ? "lockstep" : argv_0;
}

}  // namespace lockstep
