#include "runner/agent/worker_process.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): pthread_sigmask is POSIX
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "runner/base/cgroup.h"
#include "runner/base/fd.h"
#include "runner/base/fork.h"
#include "runner/base/open_files.h"
#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

constexpr int kBeatFdInChild = 3;  // the first one after stderr
constexpr int kLinkFdInWorker = 4;
// Descriptors are first moved to numbers from here on, so that they do not collide with the numbers above.
constexpr int kFdsInWorker = 10;

struct FdPair {
  Fd agent;
  Fd worker;
};

Error unavailable(const std::string& what) {
  const std::string why = std::strerror(errno);
  return Error{ErrorCode::kUnavailable, what + ": " + why + open_files_hint(why)};
}

Result<FdPair> make_pipe() {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return unavailable("cannot make a pipe");
  return FdPair{Fd(fds[0]), Fd(fds[1])};
}

Result<FdPair> make_link() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return unavailable("cannot make a socket pair");
  }
  return FdPair{Fd(fds[0]), Fd(fds[1])};
}

// Everything that the child needs, prepared before the fork (see base/fork.h).
struct ChildPlan {
  char* const* arguments;
  char* const* environment;
  int stdin_fd;
  int stdout_fd;
  int stderr_fd;
  int beat_fd;
  int link_fd;   // -1: none
  int error_fd;  // close-on-exec; when exec fails, the child writes errno to it
  bool has_terminal;
};

[[noreturn]] void run_child(const ChildPlan& plan) {
  // SIGTTOU, which this would send, is blocked here (fork_bound_child).
  if (plan.has_terminal) ::tcsetpgrp(STDIN_FILENO, ::getpid());
  // dup2 onto 0..4 might overwrite a descriptor that is still needed, so all are moved to higher numbers first.
  const int in = ::fcntl(plan.stdin_fd, F_DUPFD_CLOEXEC, kFdsInWorker);
  const int out = ::fcntl(plan.stdout_fd, F_DUPFD_CLOEXEC, kFdsInWorker);
  const int err = ::fcntl(plan.stderr_fd, F_DUPFD_CLOEXEC, kFdsInWorker);
  const int beat = ::fcntl(plan.beat_fd, F_DUPFD_CLOEXEC, kFdsInWorker);
  const int link = plan.link_fd < 0 ? -1 : ::fcntl(plan.link_fd, F_DUPFD_CLOEXEC, kFdsInWorker);
  const int error = ::fcntl(plan.error_fd, F_DUPFD_CLOEXEC, kFdsInWorker);
  const bool in_place = ::dup2(in, 0) == 0 && ::dup2(out, 1) == 1 && ::dup2(err, 2) == 2 &&
                        ::dup2(beat, kBeatFdInChild) == kBeatFdInChild &&
                        (link < 0 || ::dup2(link, kLinkFdInWorker) == kLinkFdInWorker);
  if (in_place) {
    // Another thread may have accepted a connection and not yet set its close-on-exec flag. Kernels before 5.11 do not
    // know CLOSE_RANGE_CLOEXEC; there a worker may inherit the connection, and its peer does not see it closed.
    ::close_range(link < 0 ? kBeatFdInChild + 1 : kLinkFdInWorker + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    reset_signals();
    ::execve(plan.arguments[0], plan.arguments, plan.environment);
  }
  const int why = errno;
  [[maybe_unused]] const ssize_t written = ::write(error, &why, sizeof(why));
  ::_exit(127);
}

// Starts arguments[0], a path, with the ends of its link (if `with_link`), pipes and beat page.
Result<SpawnedWorker> spawn(std::vector<std::string> arguments, const Environment& variables, int beat_fd,
                            bool with_link, bool has_terminal) {
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(environment);

  TRY_ASSIGN(FdPair out, make_pipe());
  TRY_ASSIGN(FdPair err, make_pipe());
  TRY_ASSIGN(FdPair error, make_pipe());
  FdPair link;
  if (with_link) {
    TRY_ASSIGN(link, make_link());
  }
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.get() < 0) return unavailable("cannot open /dev/null");
  ::fcntl(out.agent.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err.agent.get(), F_SETFL, O_NONBLOCK);

  const ChildPlan plan{.arguments = argv.data(),
                       .environment = envp.data(),
                       .stdin_fd = has_terminal ? STDIN_FILENO : null.get(),
                       .stdout_fd = has_terminal ? STDOUT_FILENO : out.worker.get(),
                       .stderr_fd = has_terminal ? STDERR_FILENO : err.worker.get(),
                       .beat_fd = beat_fd,
                       .link_fd = link.worker.get(),
                       .error_fd = error.worker.get(),
                       .has_terminal = has_terminal};
  const pid_t pid = fork_bound_child();
  if (pid < 0) return unavailable("cannot start a process");
  if (pid == 0) run_child(plan);

  error.worker = Fd();
  int why = 0;
  ssize_t got = 0;
  do {
    got = ::read(error.agent.get(), &why, sizeof(why));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(why)) {
    const bool is_lasting = why == ENOENT || why == EACCES || why == ENOEXEC || why == ENOTDIR;
    return Error{is_lasting ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                 "cannot run " + arguments.front() + ": " + std::strerror(why)};
  }
  if (has_terminal) return SpawnedWorker{.pid = pid, .link_fd = link.agent.release()};
  return SpawnedWorker{
      .pid = pid, .link_fd = link.agent.release(), .stdout_fd = out.agent.release(), .stderr_fd = err.agent.release()};
}

}  // namespace

Result<SpawnedWorker> spawn_worker(const WorkerCommand& command, int local_rank, int beat_fd) {
  std::vector<std::string> arguments{command.program};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  Environment variables = command.environment;
  // Only agents talk to the coordinator. Loggers upload environments, and plugins' own processes inherit them.
  variables.erase(std::string(env::kToken));
  // LOCAL_RANK, because the worker chooses its device before it gets an assignment.
  variables[std::string(env::kLocalRank)] = std::to_string(local_rank);
  variables[std::string(env::kAgentFd)] = std::to_string(kLinkFdInWorker);
  variables[std::string(env::kBeatFd)] = std::to_string(kBeatFdInChild);
  // By default libgomp's threads spin at barriers for milliseconds, which makes workers on shared cores up to ten times
  // slower; if they sleep at once, short steps take up to 1.8 times as long. A thousand turns take 25 µs on an AMD
  // EPYC.
  if (!variables.contains(std::string(env::kOmpWaitPolicy))) {
    variables.try_emplace(std::string(env::kGompSpincount), "1000");
  }
  // With these Gloo requests all addresses from the store at once instead of twice for each pair of ranks, and an
  // address does not grow with the number of ranks. All ranks must use the same setting; agents that differ in it have
  // another kCoordinationProtocol and refuse each other.
  for (const std::string_view name : {env::kGlooStoreV2, env::kGlooRankAsSequenceNumber}) {
    variables.try_emplace(std::string(name), "1");
  }
  return spawn(std::move(arguments), variables, beat_fd, /*with_link=*/true, /*has_terminal=*/false);
}

bool is_in_foreground() {
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

void reclaim_foreground() {
  sigset_t blocked{};
  sigset_t before{};
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTTOU);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  ::tcsetpgrp(STDIN_FILENO, ::getpgrp());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Result<SpawnedWorker> spawn_program(const std::vector<std::string>& words, Environment environment, int beat_fd,
                                    ProgramEnds ends) {
  environment.erase(std::string(env::kToken));
  environment[std::string(env::kBeatFd)] = std::to_string(kBeatFdInChild);
  if (ends.has_link) environment[std::string(env::kAgentFd)] = std::to_string(kLinkFdInWorker);
  return spawn(words, environment, beat_fd, ends.has_link, ends.has_terminal);
}

bool OomKillCounter::claim_kill(TimePoint now) {
  if (now - seen_at_ > kOomKillsTogether) taken_ = seen_;
  if (const int64_t count = read(); count > seen_) {
    seen_ = count;
    seen_at_ = now;
  }
  if (taken_ >= seen_) return false;
  ++taken_;
  return true;
}

int64_t OomKillCounter::read() const {
  std::ifstream file(path_);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

std::string OomKillCounter::path_of_own_cgroup() {
  const Cgroups groups;
  for (const std::filesystem::path& folder : groups.of_memory()) {
    const std::filesystem::path file = folder / (groups.is_unified() ? "memory.events" : "memory.oom_control");
    if (std::filesystem::exists(file)) return file;
  }
  return "";
}

}  // namespace lockstep
