#include "operator/control/controller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "operator/control/metrics.h"
#include "tests/operator/control/journal.h"
#include "tests/operator/control/test_clock.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;

const api::ObjectKey kA{"ns", "a"};

class ControllerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Controller> controller(Reconcile reconcile, int workers = 2) {
    const Controller::Options options{.name = "widget",
                                      .workers = workers,
                                      .logger = Logger({.sink = [this](const auto& line) { said_.write(line); }})};
    return std::make_unique<Controller>(queue_, std::move(reconcile), options, &metrics_);
  }
  // "controller_runtime_reconcile_total{controller="widget",result="error"} 3" is there.
  bool has_metric(const std::string& line) const { return metrics_.text().find(line + "\n") != std::string::npos; }

  Metrics metrics_{"widget"};
  Workqueue queue_{metrics_.queue_options()};
  Journal said_;
  Journal done_;
};

TEST_F(ControllerTest, reconciles_keys_on_several_workers_at_once) {
  std::latch both(2);
  const auto controller = this->controller([&](const api::ObjectKey& key) -> Result<ReconcileResult> {
    both.arrive_and_wait();  // each waits for the other
    done_.write(key.name);
    return ReconcileResult{};
  });
  controller->start();
  queue_.add(kA);
  queue_.add({"ns", "b"});
  EXPECT_TRUE(done_.wait_until([](const auto& lines) { return lines.size() == 2; }));
}

TEST_F(ControllerTest, an_error_is_logged_once_counted_and_the_key_comes_back) {
  std::atomic<int> left{3};
  const auto controller = this->controller([&](const api::ObjectKey&) -> Result<ReconcileResult> {
    if (left-- > 0) return Error{ErrorCode::kConflict, "somebody else was first"};
    done_.write("done");
    return ReconcileResult{};
  });
  controller->start();
  queue_.add(kA);
  ASSERT_TRUE(done_.wait_for("done"));
  controller->stop_and_join();
  ASSERT_EQ(said_.lines().size(), 3U);
  for (const char* part : {"\"level\":\"error\"", "\"object\":\"ns/a\"", "\"controller\":\"widget\"",
                           "\"error\":\"somebody else was first\"", "\"code\":\"conflict\""}) {
    EXPECT_NE(said_.lines()[0].find(part), std::string::npos) << said_.lines()[0];
  }
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_total{controller="widget",result="error"} 3)"));
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_total{controller="widget",result="success"} 1)"));
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_errors_total{controller="widget"} 3)"));
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_time_seconds_count{controller="widget"} 4)"));
  EXPECT_EQ(queue_.statistics().retries, 3U);
}

TEST_F(ControllerTest, a_busy_server_is_not_asked_again_at_once) {
  TestClock clock;
  Workqueue queue({.now = clock.source(), .on_queued = {}, .on_worked = {}});
  Controller controller(
      queue,
      [](const api::ObjectKey&) {
        return Error{ErrorCode::kRetry, "the server is busy"};
      },
      {.name = "widget", .workers = 1, .logger = Logger({.sink = [this](const auto& line) { said_.write(line); }})},
      nullptr);
  controller.start();
  queue.add(kA);
  ASSERT_TRUE(said_.wait_until([](const auto& lines) { return !lines.empty(); }));
  controller.stop_and_join();
  clock.turn(kBackoffOfBusyServer - milliseconds(1));
  EXPECT_EQ(queue.try_get(), std::nullopt);
  clock.turn(milliseconds(1));
  EXPECT_EQ(queue.try_get(), kA);
}

TEST_F(ControllerTest, success_forgets_the_failures_and_asks_again_when_wanted) {
  std::atomic<int> calls{0};
  const auto controller = this->controller([&](const api::ObjectKey&) -> Result<ReconcileResult> {
    const int call = ++calls;
    if (call == 3) done_.write("done");
    if (call >= 3) return ReconcileResult{};
    return ReconcileResult{milliseconds(1)};
  });
  for (int i = 0; i < 25; ++i) queue_.add_with_backoff(kA);
  queue_.add(kA);
  controller->start();
  ASSERT_TRUE(done_.wait_for("done"));
  controller->stop_and_join();
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_total{controller="widget",result="requeue_after"} 2)"));
  queue_.add_with_backoff(kA);
  EXPECT_EQ(queue_.get({}), kA) << "after 5 ms, not after a minute";
}

TEST_F(ControllerTest, an_exception_is_an_error_like_any_other) {
  std::atomic<bool> first{true};
  const auto controller = this->controller([&](const api::ObjectKey&) -> Result<ReconcileResult> {
    if (first.exchange(false)) throw std::runtime_error("nobody foresaw this");
    done_.write("done");
    return ReconcileResult{};
  });
  controller->start();
  queue_.add(kA);
  ASSERT_TRUE(done_.wait_for("done"));
  controller->stop_and_join();
  EXPECT_NE(said_.lines()[0].find("nobody foresaw this"), std::string::npos);
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_panics_total{controller="widget"} 1)"));
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_errors_total{controller="widget"} 1)"));
}

TEST_F(ControllerTest, stopping_lets_workers_finish_the_key_they_hold) {
  std::latch begun(1);
  std::latch go_on(1);
  const auto controller = this->controller([&](const api::ObjectKey&) -> Result<ReconcileResult> {
    begun.count_down();
    go_on.wait();
    done_.write("done");
    return ReconcileResult{};
  });
  controller->start();
  queue_.add(kA);
  begun.wait();
  std::jthread stopper([&] {
    controller->stop_and_join();
    done_.write("stopped");
  });
  go_on.count_down();
  stopper.join();
  EXPECT_EQ(done_.lines(), (Journal::Lines{"done", "stopped"}));
  EXPECT_EQ(queue_.statistics().unfinished_work, Clock::duration::zero());
}

TEST_F(ControllerTest, a_cancelled_reconcile_is_no_error_and_its_key_comes_back) {
  std::atomic<bool> first{true};
  const auto controller = this->controller([&](const api::ObjectKey&) -> Result<ReconcileResult> {
    if (first.exchange(false)) return Error{ErrorCode::kCancelled, "told to stop"};
    done_.write("done");
    return ReconcileResult{};
  });
  controller->start();
  queue_.add(kA);
  ASSERT_TRUE(done_.wait_for("done"));
  controller->stop_and_join();
  EXPECT_EQ(said_.lines(), Journal::Lines{});
  EXPECT_TRUE(has_metric(R"(controller_runtime_reconcile_errors_total{controller="widget"} 0)"));
  EXPECT_TRUE(has_metric(R"(controller_runtime_active_workers{controller="widget"} 0)"));
}

TEST_F(ControllerTest, says_how_many_workers_it_has) {
  const auto controller = this->controller([](const api::ObjectKey&) { return ReconcileResult{}; }, 5);
  EXPECT_TRUE(has_metric(R"(controller_runtime_max_concurrent_reconciles{controller="widget"} 5)"));
  EXPECT_TRUE(has_metric(R"(controller_runtime_active_workers{controller="widget"} 0)"));
}

TEST_F(ControllerTest, works_without_metrics_and_can_be_started_again) {
  Controller controller(
      queue_,
      [&](const api::ObjectKey& key) -> Result<ReconcileResult> {
        done_.write(key.name);
        return ReconcileResult{};
      },
      {.name = "widget", .workers = 1}, nullptr);
  controller.start();
  queue_.add(kA);
  ASSERT_TRUE(done_.wait_for("a"));
  controller.stop_and_join();
  queue_.add({"ns", "b"});
  controller.start();
  EXPECT_TRUE(done_.wait_for("b"));
}

}  // namespace
}  // namespace lockstep::control
