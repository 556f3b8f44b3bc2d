// Runs `lockstep run` with scripted workers, for tests.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::test {

inline constexpr std::chrono::seconds kPatience{60};  // for what takes milliseconds when all is well

class AgentProcess {
 public:
  struct Setup {
    std::string script;                    // of the fake workers
    std::vector<std::string> flags;        // after `run sasrec --dataset x`
    std::vector<std::string> environment;  // NAME=VALUE, or NAME alone to unset it
    std::vector<std::string> command;      // replaces the whole command line after the program's name
  };

  explicit AgentProcess(Setup setup) {
    std::ofstream(scratch_.file("script")) << setup.script;
    std::vector<std::string> arguments = setup.command;
    if (arguments.empty()) {
      arguments = {"run", "sasrec", "--dataset", "x", "--status_port", "0"};
      arguments.insert(arguments.end(), setup.flags.begin(), setup.flags.end());
    }
    arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM);
    std::array<int, 2> out{};
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], 1);
      ::dup2(out[1], 2);
      exec(arguments, setup.environment);
    }
    ::close(out[1]);
    output_fd_ = out[0];
  }

  ~AgentProcess() {
    if (!ended_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_fd_);
  }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  // Reads until `text` appears; false if the output ends or the time is up first.
  bool wait_for_output(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (output_.find(text) == std::string::npos) {
      if (!read_some(deadline)) return false;
    }
    return true;
  }

  // The same; the whole line in which `text` stands, empty for false.
  std::string wait_for_line(const std::string& text) {
    if (!wait_for_output(text)) return "";
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const size_t at = output_.find(text);
    while (output_.find('\n', at) == std::string::npos) {
      if (!read_some(deadline)) return "";
    }
    const size_t begin = output_.rfind('\n', at) + 1;  // 0 in the first line
    return output_.substr(begin, output_.find('\n', at) - begin);
  }

  // Reads to the end of the output and returns the exit code (128 + n for a signal).
  int wait() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (read_some(deadline)) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  void send(int signal) const { ::kill(pid_, signal); }
  [[nodiscard]] const std::string& output() const { return output_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // Where the run's folder x_default is.
  [[nodiscard]] std::string file(const std::string& name) const { return scratch_.file(name); }
  [[nodiscard]] std::string termination_log() const {
    std::ifstream file(scratch_.file("termination"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  [[noreturn]] void exec(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
    ::setenv("LOCKSTEP_WORKER", FAKE_WORKER_PROGRAM, 1);
    ::setenv("FAKE_WORKER_SCRIPT", scratch_.file("script").c_str(), 1);
    ::setenv("LOCKSTEP_TERMINATION_LOG", scratch_.file("termination").c_str(), 1);
    if (::chdir(scratch_.file("").c_str()) != 0) std::_Exit(126);  // the run's folder is made here
    for (const std::string& entry : environment) {
      const size_t equals = entry.find('=');
      if (equals == std::string::npos) {
        ::unsetenv(entry.c_str());
      } else {
        ::setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
      }
    }
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    std::_Exit(127);
  }

  bool read_some(std::chrono::steady_clock::time_point deadline) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{.fd = output_fd_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
      ADD_FAILURE() << "nothing more came; so far:\n" << output_;
      ::kill(pid_, SIGKILL);
      return false;
    }
    std::array<char, 4096> chunk{};
    const ssize_t size = ::read(output_fd_, chunk.data(), chunk.size());
    if (size <= 0) return false;
    output_.append(chunk.data(), static_cast<size_t>(size));
    return true;
  }

  TemporaryFolder scratch_;
  pid_t pid_ = 0;
  int output_fd_ = -1;
  bool ended_ = false;
  std::string output_;
};

}  // namespace lockstep::test
