#include "runner/cli/known_workloads.h"

#include <utility>

#include "runner/cli/find_worker.h"
#include "runner/cli/run_program.h"
#include "runner/config/plugin_line.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

// The description is the last line, because the plugin may have printed lines before it.
std::string last_line(const std::string& text) {
  const size_t newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

}  // namespace

Result<WorkloadList> known_workloads(const std::vector<std::string>& arguments, bool is_run,
                                     const Environment& environment) {
  TRY_ASSIGN(const std::string plugin, plugin_of(arguments));
  WorkloadList workloads = all_workload_flags();
  if (plugin.empty()) return workloads;
  TRY_ASSIGN(const std::string worker, find_worker(environment));
  std::vector<std::string> words = {worker, "--describe", plugin};
  if (is_run) {
    words.emplace_back("run");
    words.insert(words.end(), arguments.begin(), arguments.end());
  }
  TRY_ASSIGN(const ProgramEnd end, end_of_program(std::move(words)));
  const std::string line = last_line(end.output);
  if (end.code == code_of(ExitCode::kUsage)) return Error{ErrorCode::kInvalid, line};
  if (end.code != 0) {
    return Error{ErrorCode::kInvalid, "--plugin " + plugin + ": " + worker + " ended with " + exit_reason(end.code) +
                                          " (" + std::to_string(end.code) + ") while it loaded the plugin" +
                                          (line.empty() ? "" : ": " + line)};
  }
  TRY_ASSIGN(const Json description, parse_json(line, "lockstep-worker's description of " + plugin));
  TRY_ASSIGN(WorkloadFlags described, described_workload(description));
  workloads.push_back(std::move(described));
  return workloads;
}

}  // namespace lockstep
