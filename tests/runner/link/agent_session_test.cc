// The worker's end of the link to its agent: a cut reaches the group's abort, and waits for nobody.
#include "runner/link/agent_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include "runner/base/line_channel.h"

namespace lockstep {
namespace {

class AgentSessionTest : public ::testing::Test {
 protected:
  static std::array<int, 2> link() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    return ends;
  }
  void cut(uint64_t generation) {
    ASSERT_TRUE(agent_.write_line(encode(AgentMessage(Cut{generation, "NodeLost"}))).ok());
  }
  // An abort action that asks the session, as a thread that it wakes does: true once the session knows that
  // `generation` is cut.
  std::shared_ptr<GroupAbort> abort_that_asks(uint64_t generation) {
    auto abort = std::make_shared<GroupAbort>();
    abort->add_action([this, generation] { told_.set_value(session_.was_cut(generation)); });
    return abort;
  }

  const std::array<int, 2> ends_ = link();
  BeatPage page_{};
  LineChannel agent_{ends_[1]};
  std::atomic<bool> is_asked_to_stop_{false};
  AgentSession session_{ends_[0], 0, page_, [this] { return is_asked_to_stop_.load(); }};
  std::promise<bool> told_;
};

TEST_F(AgentSessionTest, a_cut_fires_the_abort_that_is_watched_without_holding_the_session) {
  const auto abort = abort_that_asks(7);
  session_.watch(7, abort);
  cut(7);
  EXPECT_TRUE(told_.get_future().get());
  EXPECT_TRUE(abort->fired());
}

TEST_F(AgentSessionTest, a_generation_that_was_cut_already_fires_at_once) {
  const auto first = abort_that_asks(8);
  session_.watch(8, first);
  cut(8);
  EXPECT_TRUE(told_.get_future().get());
  session_.stop_watching();
  told_ = std::promise<bool>();
  session_.watch(7, abort_that_asks(7));
  EXPECT_TRUE(told_.get_future().get());
}

TEST_F(AgentSessionTest, a_cut_of_an_older_generation_fires_nothing) {
  const auto abort = abort_that_asks(9);
  session_.watch(9, abort);
  cut(8);
  cut(9);
  EXPECT_TRUE(told_.get_future().get());  // once: a promise that is kept twice throws
}

TEST_F(AgentSessionTest, whoever_has_its_assignment_may_be_blamed) {
  page_.activity = Activity::kAwaiting;  // which nobody is blamed for
  page_.changed_ns = 1;
  Assignment assignment;
  assignment.generation = 5;
  ASSERT_TRUE(agent_.write_line(encode(AgentMessage(assignment))).ok());
  ASSERT_TRUE(session_.await_assignment().has_value());
  EXPECT_EQ(page_.activity.load(), Activity::kLoading);
  EXPECT_EQ(page_.generation.load(), 5U);
  EXPECT_GT(page_.changed_ns.load(), 1);
}

// The peer whose key it waits for had nothing to lose, and left at the first signal.
TEST_F(AgentSessionTest, a_stop_ends_the_wait_for_a_key_that_may_never_come) {
  auto waits = std::async(std::launch::async, [&] { return session_.call({.generation = 7, .op = StoreOp::kGet}); });
  ASSERT_TRUE(agent_.read_line().ok());  // the request is on its way
  is_asked_to_stop_ = true;
  const Result<StoreReply> reply = waits.get();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, StoreStatus::kStale);
  EXPECT_EQ(reply->message, "a stop was asked for");
  EXPECT_FALSE(session_.await_assignment());
}

}  // namespace
}  // namespace lockstep
