#include "runner/worker/leave_at_once.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace lockstep {
namespace {

void say(const Failure& failure) { std::fprintf(stderr, "said: %s\n", failure.message.c_str()); }

// Like a tensor whose memory is given back to a broken device.
struct ThrowsWhenDestroyed {
  ~ThrowsWhenDestroyed() noexcept(false) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: an illegal memory access");
  }
};

void unwind_through_a_broken_device() {
  const ThrowsWhenDestroyed broken;
  throw std::runtime_error("what went wrong first");
}

void fail_otherwise() { throw std::runtime_error("an error of ours"); }

class LeaveAtOnce : public testing::Test {
 protected:
  LeaveAtOnce() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(LeaveAtOnce, a_device_fault_that_nobody_can_catch_is_said_and_ends_as_12) {
  EXPECT_EXIT(
      {
        const UncaughtDeviceFaults uncaught(say);
        unwind_through_a_broken_device();
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::kDeviceFault)), "said: CUDA error: an illegal memory access");
}

TEST_F(LeaveAtOnce, all_else_that_nobody_catches_aborts_as_ever) {
  EXPECT_EXIT(
      {
        const UncaughtDeviceFaults uncaught(say);
        const auto nobody_catches = []() noexcept { fail_otherwise(); };
        nobody_catches();
      },
      testing::KilledBySignal(SIGABRT), "an error of ours");
}

TEST_F(LeaveAtOnce, no_destructor_runs_when_a_process_leaves_at_once) {
  EXPECT_EXIT(
      {
        const std::shared_ptr<void> breaks(nullptr, [](void*) { std::abort(); });
        std::atexit([] { std::abort(); });
        std::fputs("the last line", stderr);
        leave_at_once(ExitCode::kDeviceFault);
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::kDeviceFault)), "the last line");
}

}  // namespace
}  // namespace lockstep
