#include "runner/cli/torchrun_flags.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace lockstep {
namespace {

using enum TorchrunMeaning;

constexpr std::array kFlags = {
    TorchrunFlag{"nproc_per_node", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"nnodes", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"node_rank", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"master_addr", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"master_port", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"max_restarts", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"shutdown_timeout", 0, true, true, kOurFlag, ""},
    TorchrunFlag{"standalone", 0, false, true, kStandalone,
                 "this machine alone; --rdzv_endpoint and --rdzv_id are not used"},
    TorchrunFlag{"rdzv_endpoint", 0, true, true, kEndpoint,
                 "as --coordinator; the port may be left out (29400), and so may --node_rank"},
    TorchrunFlag{"rdzv_id", 0, true, true, kRunId,
                 "TORCHELASTIC_RUN_ID of the ranks, and in the name of --log_dir's folder"},
    TorchrunFlag{"module", 'm', false, true, kModule, "the program is a Python module: -m package.module"},
    TorchrunFlag{"no_python", 0, false, true, kNoPython, "start the program without python in front, also a .py file"},
    TorchrunFlag{"run_path", 0, false, true, kRunPath, "start the program with python in front, whatever it is called"},
    TorchrunFlag{"role", 0, true, true, kRole, "ROLE_NAME of the ranks"},
    TorchrunFlag{
        "log_dir", 0, true, true, kLogDir,
        "folder for the ranks' output: RUN_ID_…/attempt_N/LOCAL_RANK/{stdout,stderr}.log; alone: of all streams"},
    TorchrunFlag{"redirects", 'r', true, true, kRedirects,
                 "streams that go to a file and not to the console: 1 stdout, 2 stderr, 3 both; 0:3,1:1 by local rank"},
    TorchrunFlag{"tee", 't', true, true, kTee, "streams that go to a file and to the console"},
    TorchrunFlag{
        "local_ranks_filter", 0, true, true, kShownRanks,
        "local ranks that are shown on the console: 0,1. One alone, on a terminal, also gets the terminal, for a "
        "debugger"},
    TorchrunFlag{"log_line_prefix_template", 0, true, true, kPrefix,
                 "in front of each line on the console: [${role_name}${rank}]: and ${local_rank}"},
    TorchrunFlag{"duplicate_stdout_filters", 0, true, true, kDuplicateOut,
                 "lines of tee'd stdout that hold one of these (a,b) go to attempt_N/filtered_stdout.log, too"},
    TorchrunFlag{"duplicate_stderr_filters", 0, true, true, kDuplicateErr, "the same for stderr"},
    TorchrunFlag{"signals_to_handle", 0, true, true, kSignals,
                 "signals that ask for an end and are passed to the ranks [SIGTERM,SIGINT,SIGHUP,SIGQUIT]"},
    TorchrunFlag{"local_addr", 0, true, true, kLocalAddress,
                 "this node's address: MASTER_ADDR of the ranks, on node 0"},
    TorchrunFlag{"virtual_local_rank", 0, false, true, kVirtualLocalRank,
                 "each rank has LOCAL_RANK 0 and sees its GPU alone (CUDA_VISIBLE_DEVICES)"},
    TorchrunFlag{"rdzv_backend", 0, true, true, kIgnored, ""},
    TorchrunFlag{"rdzv_conf", 0, true, true, kIgnored, ""},
    TorchrunFlag{"monitor_interval", 0, true, true, kIgnored, ""},
    TorchrunFlag{"start_method", 0, true, true, kIgnored, ""},
    TorchrunFlag{"event_log_handler", 0, true, true, kIgnored, ""},
    TorchrunFlag{"print_completion", 0, true, false, kRefused, "use lockstep completion bash, zsh or fish"},
    TorchrunFlag{"logs_specs", 0, true, false, kRefused,
                 "it names a Python class of torchrun's agent. Use --log_dir, --redirects and --tee"},
    TorchrunFlag{"numa_binding", 0, true, false, kIgnored,
                 "the ranks are not bound to cores; to bind them, start the program by a script that calls numactl"},
};

}  // namespace

std::span<const TorchrunFlag> torchrun_flags() { return kFlags; }

const TorchrunFlag* find_torchrun_flag(std::string_view name) {
  const auto* const it =
      std::find_if(kFlags.begin(), kFlags.end(), [name](const auto& flag) { return flag.name == name; });
  return it == kFlags.end() ? nullptr : it;
}

const TorchrunFlag* find_torchrun_flag(char letter) {
  const auto* const it =
      std::find_if(kFlags.begin(), kFlags.end(), [letter](const auto& flag) { return flag.letter == letter; });
  return letter == 0 || it == kFlags.end() ? nullptr : it;
}

std::string variable_of(const TorchrunFlag& flag) {
  std::string name = "PET_" + std::string(flag.name);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

}  // namespace lockstep
