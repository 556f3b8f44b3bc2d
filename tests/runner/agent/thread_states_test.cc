#include "runner/agent/thread_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class FakeProc : public testing::Test {
 protected:
  void add(const std::string& thread, const std::string& name, const std::string& text) {
    const std::filesystem::path folder = root_ / "42" / "task" / thread;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / name) << text;
  }

  TemporaryFolder temporary_;
  std::filesystem::path root_ = temporary_.path();
};

TEST_F(FakeProc, tells_of_each_thread_what_the_kernel_says) {
  add("42", "comm", "worker\n");
  add("42", "status", "Name:\tworker\nState:\tS (sleeping)\n");
  add("42", "wchan", "futex_wait_queue");
  add("42", "syscall", "202 0x7f 0x0\n");
  add("100", "comm", "gloo\n");
  add("100", "status", "State:\tR (running)\n");
  add("100", "wchan", "0");
  add("100", "syscall", "running\n");
  add("9", "comm", "early\n");
  const std::vector<std::string> lines = thread_states(root_.string(), 42);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "thread 9 early: ");
#ifdef __x86_64__
  EXPECT_EQ(lines[1], "thread 42 worker: S (sleeping), in futex_wait_queue, system call 202 (futex)");
#endif
  EXPECT_EQ(lines[2], "thread 100 gloo: R (running)");
  EXPECT_THAT(thread_states(root_.string(), 43), IsEmpty());
}

TEST_F(FakeProc, shows_a_limited_number_of_threads) {
  for (size_t i = 0; i < kThreadsShownMax + 3; ++i) add(std::to_string(i + 1), "comm", "t\n");
  const std::vector<std::string> lines = thread_states(root_.string(), 42);
  ASSERT_EQ(lines.size(), kThreadsShownMax + 1);
  EXPECT_EQ(lines.back(), "and 3 more threads");
}

TEST(HandlesSignal, is_true_for_a_handler_alone) {
  const pid_t self = ::getpid();
  EXPECT_FALSE(handles_signal("/proc", self, SIGUSR2));
  std::signal(SIGUSR2, [](int) {});
  EXPECT_TRUE(handles_signal("/proc", self, SIGUSR2));
  std::signal(SIGUSR2, SIG_IGN);
  EXPECT_FALSE(handles_signal("/proc", self, SIGUSR2));
  std::signal(SIGUSR2, SIG_DFL);
  EXPECT_FALSE(handles_signal("/nowhere", self, SIGUSR2));
}

TEST_F(FakeProc, shows_that_a_stopped_process_handles_nothing) {
  std::filesystem::create_directories(root_ / "42");
  const std::string caught = "SigCgt:\t0000000000000200\n";  // SIGUSR1
  std::ofstream(root_ / "42/status") << "State:\tS (sleeping)\n" << caught;
  EXPECT_TRUE(handles_signal(root_.string(), 42, SIGUSR1));
  std::ofstream(root_ / "42/status") << "State:\tT (stopped)\n" << caught;
  EXPECT_FALSE(handles_signal(root_.string(), 42, SIGUSR1));
}

}  // namespace
}  // namespace lockstep
