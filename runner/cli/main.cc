// lockstep: the agent and the command line.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "operator/manifest/commands.h"
#include "operator/manifest/kubectl.h"
#include "runner/base/build_info.h"
#include "runner/base/file_system.h"
#include "runner/base/nearest.h"
#include "runner/base/open_files.h"
#include "runner/cli/bench_command.h"
#include "runner/cli/chaos_command.h"
#include "runner/cli/ckpt_command.h"
#include "runner/cli/completion.h"
#include "runner/cli/demo_command.h"
#include "runner/cli/doctor_command.h"
#include "runner/cli/launch_command.h"
#include "runner/cli/own_run.h"
#include "runner/cli/run_command.h"
#include "runner/cli/task_command.h"
#include "runner/cli/workloads_command.h"
#include "runner/config/check_arguments.h"
#include "runner/config/plugin_line.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace {

constexpr const char* kCommandsHelp = R"(lockstep - trains models on any number of ranks

Usage:
  lockstep demo [WORKLOAD]                 a short run with its result, and what to try next
  lockstep workloads                       what can be trained
  lockstep run WORKLOAD [flags]            start the ranks of this machine and train
  lockstep run -f trainjob.yaml [flags]    the same, as a TrainJob's file says
  lockstep run NAME --plugin FILE [flags]  train a model of your own (docs/your-own-model.md)
  lockstep launch [flags] -- python train.py   any program as the ranks of a run, as torchrun
  lockstep WORKLOAD TASK --checkpoint PATH do something with a trained model
  lockstep validate -f trainjob.yaml       say what is wrong with a TrainJob's file, and where
  lockstep render -f trainjob.yaml         print the pods that the operator would make of it
  lockstep doctor                          check whether this machine can train, and say what to fix
  lockstep bench scaling WORKLOAD [flags]  the speed-up by more ranks
  lockstep ckpt ls|verify|export|prune …   look at, check, convert and remove old checkpoints
  lockstep chaos kill-rank|kill-agent|…    kill or stop a part of a run on this machine, and measure its recovery
  lockstep completion bash|zsh|fish        completion of commands and flags in your shell
  lockstep version                         say which version this is
  lockstep run WORKLOAD --help             all flags of a workload
  lockstep WORKLOAD --help                 what can be done with a trained model
  lockstep ckpt --help                     all about checkpoints
  lockstep chaos --help                    what it can kill and stop

)";

constexpr const char* kExitCodesHelp = R"(
Exit codes: 0 done, 2 usage, 3 data, 4 checkpoint, 5 loss not finite, 10 peer lost, 11 timed out, 12 device fault,
13 out of memory, 130 stopped by Ctrl-C, 143 stopped by SIGTERM, others: a crash.
)";

std::string help() {
  std::string text = std::string(kCommandsHelp) + "Examples:\n";
  for (const lockstep::WorkloadFlags& workload : lockstep::all_workload_flags()) text += "  " + workload.example + "\n";
  return text + "  the same with --local_nodes 2     as on two machines\n" + kExitCodesHelp;
}

lockstep::manifest::CommandContext manifest_context() {
  using namespace lockstep;
  return {.program = "lockstep",
          .in = std::cin,
          .out = std::cout,
          .err = std::cerr,
          .check_args = [](const AgentCommand& command) { return check_arguments(command, all_workload_flags()); },
          .run_kubectl =
              [](const std::vector<std::string>& kubectl_arguments, const std::string& input) {
                return manifest::run_kubectl(kubectl_arguments, input, read_environment());
              }};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command.empty()) {
    std::fputs(help().c_str(), stderr);
    return static_cast<int>(lockstep::ExitCode::kUsage);
  }
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  if (command == "version" || command == "--version") {
    std::printf("lockstep %s\n", lockstep::build_version());
    return 0;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  lockstep::PosixFileSystem fs;
  if (command == "run") {
    lockstep::raise_open_files_limit();
    return lockstep::run_command(fs, rest);
  }
  if (command == "launch") {
    lockstep::raise_open_files_limit();
    return lockstep::launch_command(fs, rest);
  }
  if (command == "workloads") {
    return lockstep::workloads_command(rest, lockstep::read_environment(), std::cout, std::cerr);
  }
  if (command == "demo") {
    return lockstep::demo_command(fs, rest, lockstep::program_for_people(argv[0]), lockstep::read_environment(),
                                  std::cout, std::cerr);
  }
  if (command == "bench") return lockstep::bench_command(fs, rest, lockstep::read_environment(), std::cout, std::cerr);
  if (command == "doctor") {
    return lockstep::doctor_command(rest, lockstep::read_environment(), std::cout, std::cerr);
  }
  if (command == "validate") return lockstep::manifest::validate_command(rest, manifest_context());
  if (command == "render") return lockstep::manifest::render_command(rest, manifest_context());
  if (command == "ckpt") {
    return lockstep::ckpt_command(fs, rest, std::cout, std::cerr);
  }
  if (command == "chaos") return lockstep::chaos_command(rest, std::cout, std::cerr);
  if (command == "completion") return lockstep::completion_command(rest, std::cout, std::cerr);
  if (command == "__complete") return lockstep::complete_command(rest, std::cout);
  const bool has_plugin = lockstep::plugin_of(arguments).ok() && !lockstep::plugin_of(arguments)->empty();
  if (has_plugin || lockstep::find_workload(lockstep::all_workload_flags(), command) != nullptr) {
    return lockstep::task_command(arguments, lockstep::read_environment(), std::cout, std::cerr);
  }
  std::vector<std::string> names = lockstep::command_names();
  names.insert(names.end(), {"--version", "--help"});
  const std::string nearest = lockstep::nearest_name(command, names);
  std::fprintf(stderr, "lockstep: unknown command \"%s\"%s; see lockstep --help\n", command.c_str(),
               nearest.empty() ? "; a model of your own needs --plugin FILE.so"
                               : (", did you mean \"" + nearest + "\"?").c_str());
  return static_cast<int>(lockstep::ExitCode::kUsage);
}
