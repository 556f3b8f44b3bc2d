// lockstep-worker: one rank of a training run. Started by `lockstep run`, or by torchrun, Slurm, MPI, a pod, or alone.
// `lockstep-worker WORKLOAD TASK …` does something with a trained model, alone (`lockstep WORKLOAD TASK …`).
// `lockstep-worker --version` and `--build_info` say what it is, and stop. `lockstep-worker --describe FILE.so` says
// what a plugin trains.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/build_info.h"
#include "runner/base/file_system.h"
#include "runner/base/open_files.h"
#include "runner/config/task_config.h"
#include "runner/contract/exit_code.h"
#include "runner/plugin/load_plugin.h"
#include "runner/worker/describe_plugin.h"
#include "runner/worker/own_build.h"
#include "runner/worker/task_process.h"
#include "runner/worker/worker.h"

namespace {

void end_by_signal(int signal) { _exit(128 + signal); }

// The exit code of `WORKLOAD TASK …`; nothing for a run.
std::optional<int> run_as_task(lockstep::FileSystem& fs, const std::vector<std::string>& arguments) {
  // A run begins with its workload, a task with two words.
  if (arguments.size() < 2 || arguments[0].starts_with("-") || arguments[1].starts_with("-")) return std::nullopt;
  const lockstep::Result<lockstep::Workloads> workloads = lockstep::Workloads::load(fs, arguments);
  if (!workloads.ok()) {
    std::fprintf(stderr, "error: %s\n", workloads.error().message.c_str());
    return static_cast<int>(lockstep::ExitCode::kUsage);
  }
  if (!lockstep::names_task(arguments, workloads->flags())) return std::nullopt;
  std::signal(SIGPIPE, SIG_DFL);  // `… | head` ends it quietly
  // As the first process of a container it would not get signals that it has no handler for.
  for (const int signal : {SIGINT, SIGTERM}) {
    if (std::signal(signal, end_by_signal) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  return lockstep::run_task_process(fs, arguments, *workloads);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view only_argument = argc == 2 ? argv[1] : "";
  if (only_argument == "--version") return std::printf("lockstep-worker %s\n", lockstep::build_version()) < 0 ? 1 : 0;
  if (only_argument == "--build_info") return std::puts(lockstep::encode(lockstep::own_build()).c_str()) < 0 ? 1 : 0;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  lockstep::PosixFileSystem fs;
  if (!arguments.empty() && arguments.front() == "--describe") {
    const int code = lockstep::describe_plugin(fs, {arguments.begin() + 1, arguments.end()});
    std::fflush(nullptr);
    _exit(code);
  }
  if (const std::optional<int> code = run_as_task(fs, arguments)) {
    std::fflush(nullptr);
    _exit(*code);
  }
  lockstep::raise_open_files_limit();
  std::signal(SIGPIPE, SIG_IGN);  // `lockstep-worker … | head` must not end a run in mid-step
  const int code = lockstep::run_worker(
      fs,
      {.arguments = arguments, .environment = lockstep::read_environment(), .host_name = lockstep::read_host_name()});
  // Everything durable is durable; the static destructors of libtorch would only cost time.
  std::fflush(nullptr);
  _exit(code);
}
