#include "operator/manifest/kubectl.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "runner/base/fd.h"
#include "runner/base/fork.h"

namespace lockstep::manifest {
namespace {

// All pods of a job of 10,000 are about half of it.
constexpr size_t kOutputBytesMax = size_t{256} << 20;
// What kubectl says this long before its end is shown at once: the program that logs in waits for an answer.
constexpr int kShowAfterMs = 500;

// A file in memory. Not a pipe: kubectl may write its whole output before anybody reads, and a program that it has left
// behind would keep a pipe open.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("kubectl", MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] int fd() const { return fd_; }

  bool write(const std::string& text) const {
    for (size_t at = 0; at < text.size();) {
      const ssize_t wrote = ::write(fd_, text.data() + at, text.size() - at);
      if (wrote <= 0) return false;
      at += static_cast<size_t>(wrote);
    }
    return ::lseek(fd_, 0, SEEK_SET) == 0;
  }

  // The text behind the first `skipped` bytes. The writer's position in the file stays where it is.
  [[nodiscard]] std::string read(size_t skipped = 0) const {
    std::string text;
    std::array<char, 65'536> chunk{};
    while (text.size() < kOutputBytesMax) {
      const ssize_t got = ::pread(fd_, chunk.data(), chunk.size(), static_cast<off_t>(skipped + text.size()));
      if (got <= 0) break;
      text.append(chunk.data(), static_cast<size_t>(got));
    }
    return text;
  }

 private:
  const int fd_;
};

// The path of the program; empty: PATH has none. posix_spawnp would look in the PATH of this process.
std::string find_program(const std::string& name, const Environment& environment) {
  std::istringstream folders(variable(environment, "PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

// An errno, or 0. `in`: nullptr for our own standard input.
int start(const std::string& program, std::vector<std::string> words, std::vector<std::string> environment,
          const MemoryFile* in, const MemoryFile& out, const MemoryFile& err, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (in != nullptr) ::posix_spawn_file_actions_adddup2(&actions, in->fd(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.fd(), STDERR_FILENO);
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, pointers_to(words).data(),
                                  pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Its status, as waitpid gives it.
int wait_for(pid_t pid, const MemoryFile& err) {
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  size_t shown = 0;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    pollfd end{.fd = process.get(), .events = POLLIN, .revents = 0};
    if (::poll(&end, 1, kShowAfterMs) != 0) continue;
    const std::string text = err.read(shown);
    shown += text.size();
    std::fputs(text.c_str(), stderr);
  }
  return status;
}

Error cannot_start(int error) {
  return {.code = ErrorCode::kUnavailable,
          .message = std::string("kubectl cannot be started: ") + std::strerror(error)};
}

}  // namespace

Result<ProgramEnd> run_kubectl(const std::vector<std::string>& arguments, const std::string& input,
                               const Environment& environment) {
  const std::string program = find_program("kubectl", environment);
  if (program.empty()) {
    return Error{ErrorCode::kNotFound, "the cluster is asked through kubectl, and PATH has no program of that name"};
  }
  std::vector<std::string> words = {"kubectl"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(std::string(name).append("=").append(value));
  const MemoryFile in;
  const MemoryFile out;
  const MemoryFile err;
  if (in.fd() < 0 || out.fd() < 0 || err.fd() < 0 || !in.write(input)) return cannot_start(errno);
  pid_t pid = 0;
  if (const int error =
          start(program, std::move(words), std::move(entries), input.empty() ? nullptr : &in, out, err, pid);
      error != 0) {
    return cannot_start(error);
  }
  const int status = wait_for(pid, err);
  constexpr int kSignalBase = 128;
  const int code = WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
  return ProgramEnd{.code = code, .out = out.read(), .err = err.read()};
}

}  // namespace lockstep::manifest
