#include "runner/cli/known_workloads.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runner/cli/find_worker.h"
#include "runner/config/plugin_line.h"
#include "runner/contract/exit_code.h"
#include "runner/models/workload_flags.h"

namespace lockstep {
namespace {

Error failed(const std::string& worker, const std::string& why) {
  return Error{ErrorCode::kInvalid, "--plugin: " + worker + " " + why};
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> chunk{};
  for (;;) {
    const ssize_t size = ::read(fd, chunk.data(), chunk.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(chunk.data(), static_cast<size_t>(size));
  }
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

// Output and errors of a program that has ended with 0; both may hold lines of the plugin's own before the last one.
Result<std::string> output_of(std::vector<std::string> words, const Environment& environment) {
  const std::string program = words.front();
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  std::vector<char*> argv;
  std::vector<char*> envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& entry : entries) envp.push_back(entry.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return failed(program, std::string("has no pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  const std::string text = error == 0 ? read_all(pipe[0]) : "";
  ::close(pipe[0]);
  if (error != 0) return failed(program, std::string("cannot be started: ") + std::strerror(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = exit_code_of_wait_status(status);
  if (code == 0) return last_line(text);
  if (code == static_cast<int>(ExitCode::kUsage)) return Error{ErrorCode::kInvalid, last_line(text)};
  return failed(program, "ended with " + exit_reason(code) + " (" + std::to_string(code) +
                             ") while it loaded the plugin" + (text.empty() ? "" : ": " + last_line(text)));
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
  TRY_ASSIGN(const std::string line, output_of(std::move(words), environment));
  TRY_ASSIGN(const Json description, parse_json(line, "what lockstep-worker says of " + plugin));
  TRY_ASSIGN(WorkloadFlags described, described_workload(description));
  workloads.push_back(std::move(described));
  return workloads;
}

}  // namespace lockstep
