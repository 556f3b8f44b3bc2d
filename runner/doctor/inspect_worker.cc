#include <fcntl.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "runner/doctor/collect.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::seconds kStartTimeout{20};  // enough to load the libraries from a slow disk
constexpr size_t kOutputMax = 64 * 1024;

struct Output {
  std::string text;
  bool in_time = false;
};

// Reads until the other side closes or kOutputMax bytes have come; in_time is false when the deadline passes before.
Output read_output(int fd, std::chrono::steady_clock::time_point deadline) {
  Output output;
  std::array<char, 4096> chunk{};
  while (output.text.size() < kOutputMax) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
    if (left.count() <= 0) return output;
    const int ready = ::poll(&readable, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return output;
    const ssize_t size = ::read(fd, chunk.data(), chunk.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    output.text.append(chunk.data(), static_cast<size_t>(size));
  }
  output.in_time = true;
  return output;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

// Starts `program --build_info`, whose output and errors go to `fd`. Returns 0 and sets `pid`, or returns an errno
// value.
int start(const std::string& program, const Environment& environment, int fd, pid_t& pid) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& entry : entries) envp.push_back(entry.data());
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, fd, STDERR_FILENO);
  std::string name = program;
  std::string flag = "--build_info";
  std::array<char*, 3> argv{name.data(), flag.data(), nullptr};
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

WorkerFacts inspect_worker(const Result<std::string>& program, const Environment& environment) {
  WorkerFacts facts;
  if (!program.ok()) {
    facts.problem = program.error().message;
    return facts;
  }
  facts.program = *program;
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    facts.problem = std::strerror(errno);
    return facts;
  }
  const auto begin = std::chrono::steady_clock::now();
  pid_t pid = 0;
  const int error = start(facts.program, environment, pipe[1], pid);
  ::close(pipe[1]);
  Output output;
  if (error == 0) output = read_output(pipe[0], begin + kStartTimeout);
  ::close(pipe[0]);
  if (error != 0) {
    facts.problem = std::strerror(error);
    return facts;
  }
  if (!output.in_time) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  facts.start_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string answer = last_line(output.text);
  const Result<WorkerBuild> build = decode_worker_build(answer);
  if (build.ok()) {
    facts.build = *build;
  } else if (!output.in_time) {
    facts.problem = "no answer for " + std::to_string(kStartTimeout.count()) + " s";
  } else if (WIFSIGNALED(status)) {
    facts.problem = std::string("it is killed by signal ").append(std::to_string(WTERMSIG(status)));
  } else {
    facts.problem = answer.empty() ? "it printed nothing" : answer;
  }
  return facts;
}

}  // namespace lockstep::doctor
