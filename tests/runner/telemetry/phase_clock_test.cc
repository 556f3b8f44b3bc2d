#include "runner/telemetry/phase_clock.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

struct FakeTime {
  TimePoint now{std::chrono::seconds(100)};
  PhaseClock::Now reader() {
    return [this] { return now; };
  }
};

TEST(PhaseClock, counts_the_start_of_the_process_as_startup) {
  FakeTime time;
  const PhaseClock clock(Phase::kStartup, time.now - milliseconds(250), time.reader());
  EXPECT_DOUBLE_EQ(clock.seconds()[Phase::kStartup], 0.25);
}

TEST(PhaseClock, gives_each_phase_its_own_time) {
  FakeTime time;
  PhaseClock clock(Phase::kStartup, time.now, time.reader());
  time.now += milliseconds(500);
  EXPECT_EQ(clock.enter(Phase::kForward), Phase::kStartup);
  time.now += milliseconds(250);
  clock.enter(Phase::kBackward);
  time.now += milliseconds(125);
  clock.enter(Phase::kForward);
  time.now += milliseconds(1000);
  const PhaseSeconds seconds = clock.seconds();
  EXPECT_DOUBLE_EQ(seconds[Phase::kStartup], 0.5);
  EXPECT_DOUBLE_EQ(seconds[Phase::kForward], 1.25);
  EXPECT_DOUBLE_EQ(seconds[Phase::kBackward], 0.125);
  EXPECT_DOUBLE_EQ(seconds[Phase::kOther], 0.0);
}

TEST(PhaseClock, progress_shows_on_the_page_and_changes_no_sum) {
  FakeTime time;
  BeatPage page;
  PhaseClock clock(Phase::kStartup, time.now, time.reader());
  clock.show_on(page);
  clock.enter(Phase::kForward);
  time.now += milliseconds(700);
  clock.progress();
  EXPECT_EQ(page.changed_ns, std::chrono::nanoseconds(time.now.time_since_epoch()).count());
  EXPECT_EQ(page.phase, Phase::kForward);
  EXPECT_EQ(page.phase_ns[static_cast<size_t>(Phase::kForward)], 700'000'000);
  time.now += milliseconds(300);
  EXPECT_DOUBLE_EQ(clock.seconds()[Phase::kForward], 1.0);
}

TEST(PhaseClock, phases_add_up_to_the_wall_clock_whatever_happens) {
  FakeTime time;
  const auto began = time.now;
  PhaseClock clock(Phase::kStartup, began, time.reader());
  for (int i = 0; i < 10000; ++i) {
    time.now += std::chrono::nanoseconds(1 + (i * 7919) % 1000003);
    clock.enter(static_cast<Phase>((i * 31) % static_cast<int>(kPhaseCount)));
    if (i % 3 == 0) const PhaseScope nested(clock, Phase::kValidation);
  }
  time.now += milliseconds(3);
  EXPECT_NEAR(clock.seconds().total(), std::chrono::duration<double>(time.now - began).count(), 1e-9);
}

TEST(PhaseClock, a_scope_gives_the_time_back_to_the_phase_before) {
  FakeTime time;
  PhaseClock clock(Phase::kOther, time.now, time.reader());
  clock.enter(Phase::kForward);
  {
    const PhaseScope wait(clock, Phase::kDataWait);
    EXPECT_EQ(clock.phase(), Phase::kDataWait);
    time.now += milliseconds(40);
  }
  EXPECT_EQ(clock.phase(), Phase::kForward);
  time.now += milliseconds(10);
  EXPECT_DOUBLE_EQ(clock.seconds()[Phase::kDataWait], 0.04);
  EXPECT_DOUBLE_EQ(clock.seconds()[Phase::kForward], 0.01);
}

int64_t nanoseconds(TimePoint time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); }

int64_t shown(const BeatPage& page, Phase phase) { return page.phase_ns[static_cast<size_t>(phase)].load(); }

TEST(PhaseClock, shows_the_running_phase_and_its_beginning_on_a_page) {
  FakeTime time;
  PhaseClock clock(Phase::kForward, time.now - milliseconds(250), time.reader());
  BeatPage page;
  clock.show_on(page);
  EXPECT_EQ(page.phase.load(), Phase::kForward);
  EXPECT_EQ(page.changed_ns.load(), nanoseconds(time.now - milliseconds(250)));
  time.now += milliseconds(10);
  clock.enter(Phase::kBackward);
  EXPECT_EQ(page.phase.load(), Phase::kBackward);
  EXPECT_EQ(page.changed_ns.load(), nanoseconds(time.now));
}

TEST(PhaseClock, shows_the_time_of_the_phases_that_ended) {
  FakeTime time;
  PhaseClock clock(Phase::kForward, time.now, time.reader());
  BeatPage page;
  clock.show_on(page);
  time.now += milliseconds(30);
  EXPECT_EQ(shown(page, Phase::kForward), 0) << "it is still running";
  clock.enter(Phase::kBackward);
  EXPECT_EQ(shown(page, Phase::kForward), 30'000'000);
  time.now += milliseconds(5);
  clock.enter(Phase::kForward);
  time.now += milliseconds(2);
  clock.enter(Phase::kOther);
  EXPECT_EQ(shown(page, Phase::kForward), 32'000'000);
  EXPECT_EQ(shown(page, Phase::kBackward), 5'000'000);
}

TEST(PhaseClock, shows_time_that_was_moved) {
  FakeTime time;
  PhaseClock clock(Phase::kBackward, time.now, time.reader());
  BeatPage page;
  clock.show_on(page);
  time.now += milliseconds(30);
  clock.enter(Phase::kOptimizer);
  clock.move(Phase::kBackward, Phase::kGradSync, milliseconds(12));
  EXPECT_EQ(shown(page, Phase::kBackward), 18'000'000);
  EXPECT_EQ(shown(page, Phase::kGradSync), 12'000'000);
  EXPECT_EQ(page.phase.load(), Phase::kOptimizer);
}

TEST(PhaseClock, touches_nothing_of_a_page_but_phases_and_the_sign_of_progress) {
  FakeTime time;
  PhaseClock clock(Phase::kForward, time.now, time.reader());
  BeatPage page;
  page.step = 7;
  page.activity = Activity::kTraining;
  clock.show_on(page);
  clock.enter(Phase::kBackward);
  EXPECT_EQ(page.step.load(), 7);
  EXPECT_EQ(page.activity.load(), Activity::kTraining);
  EXPECT_EQ(page.alive_ns.load(), 0);
  EXPECT_EQ(page.committed_ns.load(), 0);
}

TEST(PhaseClock, every_phase_has_a_name_of_its_own) {
  EXPECT_STREQ(to_string(Phase::kStartup), "startup");
  EXPECT_STREQ(to_string(Phase::kDevice), "device");
  EXPECT_STREQ(to_string(Phase::kCheckpointStall), "checkpoint_stall");
  EXPECT_STREQ(to_string(Phase::kOther), "other");
  EXPECT_EQ(static_cast<size_t>(Phase::kOther) + 1, kPhaseCount);
}

}  // namespace
}  // namespace lockstep
