#include "runner/cli/run_command.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "runner/base/environment.h"
#include "runner/cli/agent_start.h"
#include "runner/cli/known_workloads.h"
#include "runner/cli/parse_command.h"
#include "runner/cli/trainjob_run.h"
#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

// A command line with what was derived from it, as it is passed to the agent and the workers.
struct Request : AgentRequest {
  WorkloadList workloads;
};

// Resolves values such as `--dataset auto` once, here: the workers and the other agents of `--local_nodes` get the data
// set's own name. Messages show the command as it was given.
Status settle(FileSystem& fs, Request& request) {
  TRY_ASSIGN(const SettledRun settled, settled_run(fs, request.config, request.arguments, request.workloads));
  if (settled.arguments == request.arguments) return {};
  request.environment.try_emplace(std::string(env::kCommandLine), resume_command_of(request.arguments));
  request.arguments = settled.arguments;
  request.config = settled.config;
  if (!settled.remark.empty()) request.remark += (request.remark.empty() ? "" : "\n") + settled.remark;
  return {};
}

// With -f the arguments come from a TrainJob's file; messages show the command that was given.
Result<Request> make_request(const std::vector<std::string>& arguments) {
  Request request;
  request.arguments = arguments;
  request.environment = read_environment();
  TRY_ASSIGN(const std::optional<TrainJobRunOptions> of_file, parse_trainjob_run(arguments));
  if (of_file) {
    TRY_ASSIGN(TrainJobRun run, read_trainjob_run(*of_file));
    request.arguments = std::move(run.arguments);
    for (auto& [name, value] : run.environment) request.environment[name] = value;
    request.environment.try_emplace(std::string(env::kCommandLine), resume_command_of(arguments));
    for (const std::string& line : run.remarks) request.remark += (request.remark.empty() ? "" : "\n") + line;
  }
  TRY_ASSIGN(request.workloads, known_workloads(request.arguments, /*is_run=*/true, request.environment));
  TRY_ASSIGN(request.config, parse_run_config(request.arguments, request.workloads));
  return request;
}

}  // namespace

int run_command(FileSystem& fs, const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    const bool names_file = arguments.front() == "-f" || arguments.front().starts_with("--file");
    const bool names_workload = !arguments.front().starts_with("-");
    const Result<WorkloadList> workloads = known_workloads(arguments, /*is_run=*/false, read_environment());
    if (!workloads.ok()) return fail(workloads.error());
    std::fputs(names_file ? kTrainJobRunHelp : run_help(names_workload ? arguments.front() : "", *workloads).c_str(),
               stdout);
    return 0;
  }
  Result<Request> made = make_request(arguments);
  if (!made.ok()) return fail(made.error());
  Request& request = *made;
  if (const Status settled = settle(fs, request); !settled.ok()) return fail(settled.error(), ExitCode::kData);
  return start_agent_of(fs, std::move(request));
}

}  // namespace lockstep
