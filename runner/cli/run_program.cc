#include "runner/cli/run_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runner/base/fork.h"
#include "runner/base/plural.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr int kNotFoundCode = 127;  // a shell's exit code for a program that is not found
constexpr size_t kOutputBytesMax = 1024 * 1024;

[[noreturn]] void run_child(char* const* argv, int output_fd) {
  ::dup2(output_fd, STDOUT_FILENO);
  ::dup2(output_fd, STDERR_FILENO);
  ::execvp(argv[0], argv);
  ::_exit(kNotFoundCode);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> chunk{};
  for (ssize_t size = 0; (size = ::read(fd, chunk.data(), chunk.size())) > 0;) {
    if (text.size() < kOutputBytesMax) text.append(chunk.data(), static_cast<size_t>(size));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Result<ProgramEnd> end_of_program(std::vector<std::string> command) {
  const std::string line = joined(command, " ");
  const std::vector<char*> argv = pointers_to(command);
  std::array<int, 2> output{};
  if (::pipe2(output.data(), O_CLOEXEC) != 0) {
    return Error{ErrorCode::kUnavailable, line + ": no pipe: " + std::strerror(errno)};
  }
  const pid_t pid = ::fork();
  if (pid == 0) run_child(argv.data(), output[1]);
  const int fork_error = errno;
  ::close(output[1]);
  ProgramEnd end{.output = read_all(output[0]), .code = 0};
  ::close(output[0]);
  int status = 0;
  while (pid > 0 && ::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return Error{ErrorCode::kUnavailable, line + ": waitpid: " + std::strerror(errno)};
  }
  if (pid < 0) {
    return Error{ErrorCode::kUnavailable, line + ": cannot be started: " + std::strerror(fork_error)};
  }
  end.code = exit_code_of_wait_status(status);
  if (end.code == kNotFoundCode) {
    const bool is_path = command.front().find('/') != std::string::npos;
    return Error{ErrorCode::kNotFound, "no program " + command.front() + (is_path ? "" : " on PATH")};
  }
  return end;
}

}  // namespace lockstep
