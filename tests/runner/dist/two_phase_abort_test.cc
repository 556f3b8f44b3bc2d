// The two phases of leaving a communicator, with functions of the test in place of NCCL's.
#include "runner/dist/two_phase_abort.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runner/dist/fault.h"
#include "runner/link/group_abort.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string>;
using std::chrono::milliseconds;

constexpr std::chrono::hours kForEver{1};

// What was called, in order.
class Journal {
 public:
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.push_back(name);
  }
  Names names() const {
    const std::lock_guard lock(mutex_);
    return names_;
  }

 private:
  mutable std::mutex mutex_;
  Names names_;
};

class TwoPhaseAbortTest : public testing::Test {
 protected:
  TwoPhaseAbort::Calls calls() {
    return {.revoke =
                [this] {
                  journal_.add("revoke");
                  revoked_.set_value();
                },
            .abort = [this] { journal_.add("abort"); },
            .patience = kForEver};
  }
  // A communicator whose init has ended, in group_.
  std::shared_ptr<TwoPhaseAbort> formed(TwoPhaseAbort::Calls calls) {
    auto abort = std::make_shared<TwoPhaseAbort>(std::move(calls));
    group_.add_action([abort] { abort->cut(); });
    abort->await_init([] { return true; }, milliseconds(0));
    return abort;
  }
  static void expect_is_cut(const TwoPhaseAbort& abort) {
    try {
      abort.check();
      FAIL() << "it was not cut";
    } catch (const RunFault& e) {
      EXPECT_EQ(e.code, ExitCode::kPeerLost);
    }
  }

  Journal journal_;
  std::promise<void> revoked_;
  GroupAbort group_;
};

TEST_F(TwoPhaseAbortTest, the_gate_is_shut_before_the_revoke_and_the_abort_waits_for_the_training_thread) {
  group_.add_action([this] { journal_.add("shut"); });
  const auto abort = formed(calls());
  EXPECT_EQ(abort->launch([] { return 7; }), 7);
  group_.fire();
  revoked_.get_future().wait();
  EXPECT_EQ(journal_.names(), (Names{"shut", "revoke"}));
  abort->abort();
  abort->abort();
  EXPECT_EQ(journal_.names(), (Names{"shut", "revoke", "abort"}));
}

TEST_F(TwoPhaseAbortTest, a_group_that_ends_in_order_is_aborted_and_not_revoked) {
  const auto abort = formed(calls());
  abort->check();
  abort->abort();
  abort->cut();  // too late to matter
  EXPECT_EQ(journal_.names(), Names{"abort"});
}

TEST_F(TwoPhaseAbortTest, nothing_is_launched_after_a_cut) {
  const auto abort = formed(calls());
  group_.fire();
  EXPECT_THROW(abort->launch([this] { journal_.add("launch"); }), RunFault);
  expect_is_cut(*abort);
  abort->abort();
  EXPECT_EQ(journal_.names(), (Names{"revoke", "abort"}));
}

TEST_F(TwoPhaseAbortTest, the_revoke_waits_for_a_launch_that_is_under_way) {
  const auto abort = formed(calls());
  abort->launch([&] {
    group_.fire();  // returns, although the revoke cannot begin
    EXPECT_EQ(revoked_.get_future().wait_for(milliseconds(0)), std::future_status::timeout);
    journal_.add("launched");
  });
  abort->abort();
  EXPECT_EQ(journal_.names(), (Names{"launched", "revoke", "abort"}));
}

// This is how a launch of NCCL behaves while its connections are not made: the abort ends it, and it returns
// ncclInvalidUsage.
TEST_F(TwoPhaseAbortTest, a_launch_that_hangs_is_ended_by_the_abort_and_reports_the_cut) {
  std::promise<void> aborted;
  TwoPhaseAbort::Calls calls = this->calls();
  calls.patience = milliseconds(10);
  calls.abort = [&] {
    journal_.add("abort");
    aborted.set_value();
  };
  const auto abort = formed(std::move(calls));
  try {
    abort->launch([&] {
      group_.fire();
      aborted.get_future().wait();
      throw NcclFault(NcclResult::kInvalidUsage, "communicator was revoked");
    });
    FAIL() << "the launch ended well";
  } catch (const std::exception& e) {
    EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
  }
  abort->abort();
  EXPECT_EQ(journal_.names(), Names{"abort"}) << "no revoke, and one abort";
}

TEST_F(TwoPhaseAbortTest, a_launch_that_fails_in_a_group_that_was_not_cut_reports_its_error) {
  const auto abort = formed(calls());
  EXPECT_THROW(abort->launch([] { throw NcclFault(NcclResult::kInvalidUsage, "a bug"); }), NcclFault);
  abort->check();
}

TEST_F(TwoPhaseAbortTest, a_revoke_that_fails_becomes_an_abort_which_the_cut_does_not_wait_for) {
  std::promise<void> begun;
  std::promise<void> may_end;
  const auto abort = formed({.revoke = [] { throw NcclFault(NcclResult::kInvalidArgument, "no"); },
                             .abort =
                                 [&] {
                                   begun.set_value();
                                   may_end.get_future().wait();
                                 }});
  group_.fire();
  begun.get_future().wait();
  may_end.set_value();
  abort->abort();
}

// The thread that reports a cut also marks this process as alive, so it must not block.
TEST_F(TwoPhaseAbortTest, a_slow_abort_blocks_only_the_training_thread) {
  std::promise<void> begun;
  std::promise<void> may_end;
  const auto abort = formed({.revoke = [] {},
                             .abort =
                                 [&] {
                                   begun.set_value();
                                   may_end.get_future().wait();
                                 }});
  std::thread training([&] { abort->abort(); });
  begun.get_future().wait();
  group_.fire();
  abort->cut();
  EXPECT_TRUE(group_.fired());
  expect_is_cut(*abort);
  may_end.set_value();
  training.join();
}

TEST_F(TwoPhaseAbortTest, a_wait_ends_when_its_collective_has_ended) {
  const auto abort = formed(calls());
  int polls = 0;
  abort->await_collective([&] { return ++polls == 3; }, kForEver);
  EXPECT_EQ(polls, 3);
  abort->abort();
  EXPECT_EQ(journal_.names(), Names{"abort"});
}

TEST_F(TwoPhaseAbortTest, a_wait_in_a_group_that_is_cut_ends_with_the_revoke_and_reports_the_cut) {
  const auto abort = formed(calls());
  const auto revoked = revoked_.get_future();
  const auto ends_with_the_revoke = [&] {
    group_.fire();
    return revoked.wait_for(milliseconds(0)) == std::future_status::ready;
  };
  EXPECT_THROW(abort->await_collective(ends_with_the_revoke, kForEver), RunFault);
  expect_is_cut(*abort);
  abort->abort();
  EXPECT_EQ(journal_.names(), (Names{"revoke", "abort"}));
}

// The gate is shut first, as after any other error.
TEST_F(TwoPhaseAbortTest, a_collective_that_takes_too_long_cuts_the_group_and_is_reported) {
  TwoPhaseAbort::Calls calls = this->calls();
  calls.on_error = [this] { group_.fire(); };
  group_.add_action([this] { journal_.add("shut"); });
  const auto abort = formed(std::move(calls));
  try {
    abort->await_collective([] { return false; }, milliseconds(0));
    FAIL() << "it has ended";
  } catch (const RunFault& e) {
    EXPECT_EQ(e.code, ExitCode::kTimeout);
  }
  revoked_.get_future().wait();
  abort->abort();
  EXPECT_EQ(journal_.names(), (Names{"shut", "revoke", "abort"}));
}

TEST_F(TwoPhaseAbortTest, an_init_that_ends_after_the_cut_is_aborted) {
  TwoPhaseAbort abort(calls());
  const auto ends_after_the_cut = [&] {
    abort.cut();
    return true;
  };
  EXPECT_THROW(abort.await_init(ends_after_the_cut, kForEver), RunFault);
  EXPECT_EQ(journal_.names(), Names{"abort"});
}

TEST_F(TwoPhaseAbortTest, an_init_that_waits_for_a_peer_is_left_at_the_cut) {
  TwoPhaseAbort abort(calls());
  std::atomic<bool> waits{false};
  std::thread link([&] {
    waits.wait(false);
    abort.cut();
  });
  const auto never_ends = [&] {
    waits = true;
    waits.notify_all();
    return false;
  };
  EXPECT_THROW(abort.await_init(never_ends, kForEver), RunFault);
  link.join();
  EXPECT_EQ(journal_.names(), Names{"abort"});
}

TEST_F(TwoPhaseAbortTest, an_init_that_fails_is_aborted_and_reports_its_error_unless_it_was_cut) {
  const auto fails = []() -> bool { throw NcclFault(NcclResult::kSystemError, "no interface"); };
  TwoPhaseAbort alone(calls());
  EXPECT_THROW(alone.await_init(fails, kForEver), NcclFault);
  TwoPhaseAbort cut(calls());
  cut.cut();
  EXPECT_THROW(cut.await_init(fails, kForEver), RunFault);
  EXPECT_EQ(journal_.names(), (Names{"abort", "abort"}));
}

TEST_F(TwoPhaseAbortTest, an_init_that_takes_too_long_is_aborted) {
  TwoPhaseAbort abort(calls());
  try {
    abort.await_init([] { return false; }, milliseconds(0));
    FAIL() << "it has ended";
  } catch (const RunFault& e) {
    EXPECT_EQ(e.code, ExitCode::kTimeout);
  }
  EXPECT_EQ(journal_.names(), Names{"abort"});
}

// A link that breaks while the processes at both ends live: no agent reports it.
TEST_F(TwoPhaseAbortTest, an_error_of_the_communicator_cuts_the_group_and_is_reported) {
  TwoPhaseAbort::Calls calls = this->calls();
  std::atomic<bool> is_broken{false};
  calls.error_interval = milliseconds(1);
  calls.error = [&] {
    return is_broken ? std::make_exception_ptr(NcclFault(NcclResult::kRemoteError, "reset")) : nullptr;
  };
  calls.on_error = [&] { group_.fire(); };
  group_.add_action([this] { journal_.add("shut"); });
  const auto abort = formed(std::move(calls));
  abort->check();
  is_broken = true;
  revoked_.get_future().wait();
  EXPECT_THROW(abort->check(), NcclFault);
  EXPECT_THROW(abort->launch([] {}), NcclFault);
  abort->abort();
  EXPECT_EQ(journal_.names(), (Names{"shut", "revoke", "abort"}));
}

}  // namespace
}  // namespace lockstep
