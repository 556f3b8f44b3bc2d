// health.startupTimeoutSeconds over time, while the workers report that they load data, and while they do not.
#include <gtest/gtest.h>

#include "operator/train/health.h"
#include "operator/train/run_report.h"

namespace lockstep::train {
namespace {

constexpr int kTimeout = 300;

// A job of two pods, none of them ready, which the operator looks at every ten seconds.
class StartingJob {
 public:
  // Until `now`; stops when the job fails.
  Startup check_until(api::UnixSeconds now, bool is_loading) {
    Startup startup;
    for (; now_ < now && !startup.timed_out; now_ += kBetweenLooks) {
      const StartupInput input{.ready = 0, .needed = 2, .is_loading = is_loading, .now = now_};
      startup = apply_startup_timeout(spec(), input, waiting_since_);
      waiting_since_ = startup.waiting_since;
    }
    return startup;
  }

 private:
  static constexpr api::UnixSeconds kBetweenLooks = 10;

  static api::TrainJobSpec spec() {
    api::TrainJobSpec spec;
    spec.health.startup_timeout_seconds = kTimeout;
    return spec;
  }

  api::UnixSeconds now_ = 1000;
  api::UnixSeconds waiting_since_ = 0;
};

TEST(StartupTimeout, does_not_run_while_workers_come_further_with_their_data) {
  StartingJob job;
  const Startup startup = job.check_until(1000 + 20 * kTimeout, true);
  EXPECT_FALSE(startup.timed_out);
  EXPECT_EQ(startup.waiting_since, 0);
  EXPECT_FALSE(startup.requeue_at);
}

TEST(StartupTimeout, counts_from_when_workers_come_no_further) {
  StartingJob job;
  const api::UnixSeconds stalled = 1000 + 20 * kTimeout;
  EXPECT_FALSE(job.check_until(stalled, true).timed_out);
  const Startup waits = job.check_until(stalled + kTimeout, false);
  EXPECT_FALSE(waits.timed_out);
  EXPECT_EQ(waits.waiting_since, stalled);
  EXPECT_EQ(waits.requeue_at, stalled + kTimeout);
  const Startup over = job.check_until(stalled + 2 * kTimeout, false);
  ASSERT_TRUE(over.timed_out);
  EXPECT_EQ(*over.timed_out,
            "0 of the 2 pods that are needed were ready after 300 s (health.startupTimeoutSeconds is 300)");
}

TEST(StartupTimeout, begins_anew_when_workers_come_further_again) {
  StartingJob job;
  const api::UnixSeconds half = kTimeout / 2;
  EXPECT_FALSE(job.check_until(1000 + half, false).timed_out);
  EXPECT_FALSE(job.check_until(1000 + 2 * half, true).timed_out);
  EXPECT_FALSE(job.check_until(1000 + 3 * half, false).timed_out);
  EXPECT_TRUE(job.check_until(1000 + 6 * half, false).timed_out);
}

// A minute without a new piece is no progress (kLoadingSilentSeconds), however much was prepared before.
TEST(StartupTimeout, takes_a_report_whose_data_have_stood_still_for_no_progress) {
  RunReport report;
  report.loading = ReportedLoading{.prepared = 4999, .to_prepare = 5000, .seconds_unchanged = 59.0};
  StartingJob job;
  EXPECT_FALSE(job.check_until(1000 + 2 * kTimeout, report.is_loading()).timed_out);
  report.loading->seconds_unchanged = 60.0;
  EXPECT_TRUE(job.check_until(1000 + 4 * kTimeout, report.is_loading()).timed_out);
}

}  // namespace
}  // namespace lockstep::train
