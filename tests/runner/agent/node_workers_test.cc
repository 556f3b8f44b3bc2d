#include "runner/agent/node_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>

#include "runner/contract/stack_lines.h"
#include "tests/runner/agent/run_until.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

// A worker that is a shell: it hangs, and answers SIGUSR1 with `stack`.
class AWorkerThatHangs : public testing::Test {
 protected:
  // How long a kill takes that is ordered right after the worker's stack was asked for.
  std::chrono::steady_clock::duration time_to_kill(const std::string& stack) {
    lines_.clear();
    end_.reset();
    const std::string script = "trap '" + stack + "' USR1; echo ready; while :; do :; done";
    NodeWorkers workers(loop_, {.program = "/bin/sh", .arguments = {"-c", script}, .environment = {}}, "", 1,
                        {.on_message = [](int, const WorkerMessage&) {},
                         .on_end = [this](const WorkerEnd& end) { end_ = end; },
                         .on_line = [this](int, bool, const std::string& line) { lines_.push_back(line); },
                         .on_note = [](const std::string&) {}});
    EXPECT_TRUE(workers.start(0).ok());
    EXPECT_TRUE(until([&] { return !lines_.empty(); }));
    const auto begin = std::chrono::steady_clock::now();
    workers.dump_stacks(0, 0);
    workers.kill(0);
    EXPECT_TRUE(until([&] {
      workers.reap();
      return end_.has_value();
    }));
    return std::chrono::steady_clock::now() - begin;
  }

  bool until(const std::function<bool()>& is_so) { return run_until(loop_, is_so); }

  boost::asio::io_context loop_;
  std::vector<std::string> lines_;
  std::optional<WorkerEnd> end_;
};

const std::string kLastLine(kStackEnd);

TEST_F(AWorkerThatHangs, is_killed_as_soon_as_its_stack_was_written) {
  auto quickest = time_to_kill("echo frame >&2; echo " + kLastLine + " >&2");
  EXPECT_THAT(lines_, ElementsAre("ready", "frame", kLastLine));
  ASSERT_TRUE(end_);
  EXPECT_TRUE(end_->killed_by_us);
  EXPECT_EQ(end_->code, 128 + SIGKILL);
  // A busy machine may be slow once.
  for (int i = 0; i < 4 && quickest >= kStackTime; ++i) quickest = time_to_kill("echo " + kLastLine + " >&2");
  EXPECT_LT(quickest, kStackTime);
}

TEST_F(AWorkerThatHangs, is_killed_without_its_stack_when_that_does_not_come) {
  EXPECT_GE(time_to_kill("echo frame >&2"), kStackTime);
  EXPECT_THAT(lines_, ElementsAre("ready", "frame"));
  EXPECT_TRUE(end_ && end_->killed_by_us);
}

}  // namespace
}  // namespace lockstep
