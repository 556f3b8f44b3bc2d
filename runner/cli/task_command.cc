#include "runner/cli/task_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runner/base/fork.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"
#include "runner/cli/find_worker.h"
#include "runner/cli/known_workloads.h"
#include "runner/config/task_config.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

std::string workload_help(const WorkloadFlags& workload) {
  std::string text = workload.name + ": " + workload.summary + "\n\nUsage:\n  lockstep run " + workload.name +
                     " [flags]\n      train\n";
  std::string examples = "\nExamples:\n  " + workload.example + "\n";
  for (const WorkloadTask& task : workload.tasks) {
    text +=
        "  lockstep " + workload.name + " " + task.name + " --checkpoint PATH [flags]\n      " + task.summary + "\n";
    for (const std::string& example : task.examples) examples += "  " + example + "\n";
  }
  return text + examples + "\n--help after a task's name lists its flags.\n";
}

// The message for a word that is not a task of the workload, with the task that was probably meant.
std::string problem_of(const WorkloadFlags& workload, const std::string& word) {
  std::vector<std::string> names;
  for (const WorkloadTask& task : workload.tasks) names.push_back(task.name);
  if (names.empty()) return "has no tasks; to train: lockstep run " + workload.name;
  std::string text = "found " + (word.empty() ? "nothing" : "\"" + word + "\"") + ", expected a task: " + joined(names);
  if (const std::string nearest = nearest_name(word, names); !nearest.empty()) {
    text += "; did you mean \"" + nearest + "\"?";
  } else if (word.starts_with("-")) {
    text += "; to train: lockstep run " + workload.name + " " + word + " …";
  }
  return text;
}

// Replaces this process by `program`; returns an exit code only when that fails.
int exec_program(const std::string& program, const std::vector<std::string>& arguments, std::ostream& err) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ::execv(program.c_str(), pointers_to(words).data());
  err << "lockstep: " << program << " cannot be started: " << std::strerror(errno) << "\n";
  return code_of(ExitCode::kUsage);
}

}  // namespace

int task_command(const std::vector<std::string>& arguments, const Environment& environment, std::ostream& out,
                 std::ostream& err) {
  const Result<WorkloadList> known = known_workloads(arguments, /*is_run=*/false, environment);
  const WorkloadFlags* const found = known.ok() ? find_workload(*known, arguments.front()) : nullptr;
  if (found == nullptr) {
    err << "lockstep " << arguments.front() << ": "
        << (known.ok() ? "the plugin's workload is called " + known->back().name : known.error().message) << "\n";
    return code_of(ExitCode::kUsage);
  }
  const WorkloadList& workloads = *known;
  const WorkloadFlags& workload = *found;
  const std::string word = arguments.size() < 2 ? "" : arguments[1];
  const auto refuse = [&](const std::string& what) {
    err << "lockstep " << workload.name << what << "; see lockstep " << workload.name << " --help\n";
    return code_of(ExitCode::kUsage);
  };
  if (word.starts_with("-") && wants_help(arguments)) {
    out << workload_help(workload);
    return 0;
  }
  const WorkloadTask* const task = find_task(&workload, word);
  if (task == nullptr) return refuse(": " + problem_of(workload, word));
  if (wants_help(arguments)) {
    out << task_help(workload, *task);
    return 0;
  }
  const Result<RunConfig> config = parse_task_config(arguments, workloads);
  if (!config.ok()) return refuse(" " + task->name + ": " + config.error().message);
  const Result<std::string> worker = find_worker(environment);
  if (!worker.ok()) {
    err << "lockstep " << workload.name << ": " << worker.error().message << "\n";
    return code_of(ExitCode::kUsage);
  }
  return exec_program(*worker, arguments, err);
}

}  // namespace lockstep
