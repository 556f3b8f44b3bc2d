#include "runner/base/fork.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace lockstep {
namespace {

TEST(KillThisProcess, ends_it_by_sigkill) {
  const pid_t child = ::fork();
  if (child == 0) kill_this_process();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// A process in a namespace of its own is PID 1 there, as in a container, and the kernel ignores its own SIGKILL.
TEST(KillThisProcess, ends_the_first_process_of_a_container) {
  constexpr int kNotAllowed = 77;
  const pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(kNotAllowed);
    const pid_t inner = ::fork();
    if (inner == 0) kill_this_process();
    int status = 0;
    ::waitpid(inner, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) GTEST_SKIP() << "a PID namespace needs root";
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGKILL);
}

}  // namespace
}  // namespace lockstep
