#include "runner/cli/own_run.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "runner/base/fork.h"
#include "runner/base/shell_word.h"
#include "runner/cli/local_nodes.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kTick{250};
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

// Waits for one child.
class ChildWatch {
 public:
  // To be made before the child is started, so that no signal is missed.
  explicit ChildWatch(const std::function<void()>& on_tick)
      : on_tick_(on_tick), signals_(loop_, SIGINT, SIGTERM, SIGCHLD), tick_(loop_) {
    if (!ignores_hangup()) signals_.add(SIGHUP);
  }

  int wait_for(pid_t pid) {
    pid_ = pid;
    wait_for_signals();
    wait_for_tick();
    loop_.run();
    return code_;
  }

 private:
  void wait_for_signals() {
    signals_.async_wait([this](boost::system::error_code error, int signal) {
      if (error) return;
      if (signal != SIGCHLD) ::kill(pid_, signal);
      if (signal == SIGCHLD && reap()) return loop_.stop();
      wait_for_signals();
    });
  }

  void wait_for_tick() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](boost::system::error_code error) {
      if (error) return;
      on_tick_();
      wait_for_tick();
    });
  }

  bool reap() {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    code_ = exit_code_of_wait_status(status);
    return true;
  }

  const std::function<void()>& on_tick_;  // outlives this: run_to_end's own
  boost::asio::io_context loop_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer tick_;
  pid_t pid_ = -1;
  int code_ = code_of(ExitCode::kCrash);
};

}  // namespace

Environment environment_of_own_run(const Environment& environment) {
  Environment own = environment;
  std::erase_if(own, [](const auto& variable) { return is_foreign(variable.first); });
  // In a pod the termination message belongs to the pod's main program, so this run must not write it.
  own[std::string(env::kTerminationLog)] = kNowhere;
  return own;
}

Result<int> run_to_end(const OwnRun& run, const std::function<void()>& on_tick) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Error{ErrorCode::kUnavailable, "cannot read /proc/self/exe: " + error.message()};
  NodeLaunch launch{.arguments = {}, .environment = run.environment};
  if (run.is_run) launch.arguments.emplace_back("run");
  launch.arguments.insert(launch.arguments.end(), run.arguments.begin(), run.arguments.end());
  ChildWatch watch(on_tick);
  const pid_t pid =
      start_agent(program.string(), launch, AgentDescriptors{.stdout_fd = run.stdout_fd, .stderr_fd = run.stderr_fd});
  if (pid < 0) return Error{ErrorCode::kUnavailable, std::string("no process for the run: ") + std::strerror(errno)};
  return watch.wait_for(pid);
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
