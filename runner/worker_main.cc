// lockstep-worker: one rank of a training run. Started by `lockstep run`, or by torchrun, Slurm, MPI, a pod, or alone.
// `lockstep-worker WORKLOAD TASK …` does something with a trained model, alone (`lockstep WORKLOAD TASK …`).
// `lockstep-worker --version` and `--build_info` say what it is, and stop.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/build_info.h"
#include "runner/config/task_config.h"
#include "runner/models/workload_flags.h"
#include "runner/worker/own_build.h"
#include "runner/worker/task_process.h"
#include "runner/worker/worker.h"

int main(int argc, char** argv) {
  const std::string_view only_argument = argc == 2 ? argv[1] : "";
  if (only_argument == "--version") return std::printf("lockstep-worker %s\n", lockstep::build_version()) < 0 ? 1 : 0;
  if (only_argument == "--build_info") return std::puts(lockstep::encode(lockstep::own_build()).c_str()) < 0 ? 1 : 0;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (lockstep::names_task(arguments, lockstep::all_workload_flags())) {
    std::signal(SIGPIPE, SIG_DFL);  // `… | head` ends it quietly
    const int code = lockstep::run_task_process(arguments);
    std::fflush(nullptr);
    _exit(code);
  }
  std::signal(SIGPIPE, SIG_IGN);  // `lockstep-worker … | head` must not end a run in mid-step
  char host_name[256] = "";
  gethostname(host_name, sizeof host_name - 1);
  const int code = lockstep::run_worker(
      {.arguments = arguments, .environment = lockstep::read_environment(), .host_name = host_name});
  // Everything durable is durable; the static destructors of libtorch would only cost time.
  std::fflush(nullptr);
  _exit(code);
}
