#include "operator/manifest/kubectl.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include "runner/base/fork.h"

namespace lockstep::manifest {
namespace {

constexpr size_t kOutputBytesMax = size_t{4} << 20;

// A file in memory. Not a pipe: kubectl may write its whole output before
// anybody reads.
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

  [[nodiscard]] std::string read() const {
    std::string text;
    std::array<char, 4096> chunk{};
    ::lseek(fd_, 0, SEEK_SET);
    while (text.size() < kOutputBytesMax) {
      const ssize_t got = ::read(fd_, chunk.data(), chunk.size());
      if (got <= 0) break;
      text.append(chunk.data(), static_cast<size_t>(got));
    }
    return text;
  }

 private:
  const int fd_;
};

// The path of the program; empty: PATH has none. posix_spawnp would look in the
// PATH of this process.
std::string find_program(const std::string& name, const Environment& environment) {
  std::istringstream folders(variable(environment, "PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

// An errno, or 0.
int start(const std::string& program, std::vector<std::string> words, std::vector<std::string> environment,
          const MemoryFile& in, const MemoryFile& out, const MemoryFile& err, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.fd(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.fd(), STDERR_FILENO);
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, pointers_to(words).data(),
                                  pointers_to(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
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
    return Error{ErrorCode::kNotFound,
                 "--server asks the cluster through kubectl, and PATH has no "
                 "program of that name"};
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
  if (const int error = start(program, std::move(words), std::move(entries), in, out, err, pid); error != 0) {
    return cannot_start(error);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  constexpr int kSignalBase = 128;
  const int code = WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
  return ProgramEnd{.code = code, .out = out.read(), .err = err.read()};
}

}  // namespace lockstep::manifest
