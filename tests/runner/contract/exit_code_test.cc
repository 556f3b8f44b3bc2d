#include "runner/contract/exit_code.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace lockstep {
namespace {

TEST(ExitCode, has_a_reason_for_each_end) {
  EXPECT_EQ(exit_reason(0), "Done");
  EXPECT_EQ(exit_reason(10), "PeerLost");
  EXPECT_EQ(exit_reason(143), "Terminated");
  EXPECT_EQ(exit_reason(137), "SignalKILL");
  EXPECT_EQ(exit_reason(1), "Crash");
  EXPECT_EQ(exit_reason(77), "Crash");
  EXPECT_EQ(exit_reason(255), "Crash");
}

TEST(ExitCode, is_refined_by_the_word_of_a_refusal_that_the_operator_knows) {
  const std::string refusal =
      "rank 0: ConfigurationChanged: /checkpoints/a/step-00000010 is a checkpoint of another run";
  EXPECT_EQ(termination_reason(2, refusal), "ConfigurationChanged");
  EXPECT_EQ(termination_reason(2, "--lr is -1, expected 0 or more"), "InvalidUsage");
  EXPECT_EQ(termination_reason(1, refusal), "Crash");
}

int wait_status_of_child(int code, int signal) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (signal != 0) ::kill(::getpid(), signal);
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(ExitCode, is_128_plus_the_signal) {
  EXPECT_EQ(exit_code_of_wait_status(wait_status_of_child(3, 0)), 3);
  EXPECT_EQ(exit_code_of_wait_status(wait_status_of_child(0, SIGKILL)), 137);
}

TEST(RootCause, is_the_first_own_fault_else_a_lost_peer_else_the_stop) {
  EXPECT_EQ(root_cause({}), 0);
  EXPECT_EQ(root_cause({0, 0}), 0);
  EXPECT_EQ(root_cause({10, 139, 3}), 139);
  EXPECT_EQ(root_cause({143, 10}), 10);
  EXPECT_EQ(root_cause({10, 143, 0}), 10);
  EXPECT_EQ(root_cause({0, 143, 130}), 143);
  EXPECT_EQ(root_cause({130, 0}), 130);
}

}  // namespace
}  // namespace lockstep
