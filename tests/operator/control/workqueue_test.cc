#include "operator/control/workqueue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <map>
#include <thread>
#include <vector>

#include "tests/operator/control/test_clock.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const api::ObjectKey kA{"ns", "a"};
const api::ObjectKey kB{"ns", "b"};
const api::ObjectKey kC{"ns", "c"};

class WorkqueueTest : public ::testing::Test {
 protected:
  TestClock clock_;
  Workqueue queue_{{.now = clock_.source()}};
};

TEST_F(WorkqueueTest, hands_keys_out_in_the_order_they_came) {
  for (const auto& key : {kC, kA, kB}) queue_.add(key);
  EXPECT_EQ(queue_.try_get(), kC);
  EXPECT_EQ(queue_.try_get(), kA);
  EXPECT_EQ(queue_.try_get(), kB);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkqueueTest, equal_keys_collapse) {
  queue_.add(kA);
  queue_.add(kA);
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
  EXPECT_EQ(queue_.statistics().adds, 1U);
}

TEST_F(WorkqueueTest, a_key_that_is_worked_on_is_not_handed_out_twice_and_comes_back_when_it_is_done) {
  queue_.add(kA);
  ASSERT_EQ(queue_.try_get(), kA);
  queue_.add(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkqueueTest, keeps_the_earlier_deadline) {
  queue_.add_after(kA, seconds(10));
  queue_.add_after(kA, seconds(5));
  queue_.add_after(kA, seconds(20));
  clock_.turn(milliseconds(4999));
  EXPECT_EQ(queue_.try_get(), std::nullopt);
  clock_.turn(milliseconds(1));
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  clock_.turn(seconds(100));
  EXPECT_EQ(queue_.try_get(), std::nullopt) << "one deadline is left of three";
}

TEST_F(WorkqueueTest, a_key_that_is_added_no_longer_waits) {
  queue_.add_after(kA, seconds(10));
  queue_.add(kA);
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkqueueTest, a_deadline_set_while_the_key_is_worked_on_counts_from_then) {
  queue_.add(kA);
  ASSERT_EQ(queue_.try_get(), kA);
  queue_.add_after(kA, seconds(10));
  queue_.add_after(kA, seconds(3));
  clock_.turn(seconds(2));
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
  clock_.turn(seconds(1));
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkqueueTest, what_became_due_first_goes_first) {
  queue_.add_after(kA, seconds(2));
  clock_.turn(seconds(3));
  queue_.add(kB);
  EXPECT_EQ(queue_.try_get(), kA);
  EXPECT_EQ(queue_.try_get(), kB);
}

TEST_F(WorkqueueTest, keys_that_go_first_go_in_their_order_before_those_that_are_due_longer) {
  queue_.add(kA);
  queue_.add(kC);
  clock_.turn(seconds(5));
  queue_.add_first(kB);
  queue_.add_first(kC);  // was due before, and stays so
  queue_.add(kB);        // goes first still
  for (const auto& key : {kC, kB, kA}) {
    ASSERT_EQ(queue_.try_get(), key) << key.name;
    queue_.done(key);
  }
  EXPECT_EQ(queue_.statistics().adds, 3U);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkqueueTest, a_key_that_is_worked_on_goes_first_when_it_is_done_and_once_only) {
  queue_.add(kA);
  ASSERT_EQ(queue_.try_get(), kA);
  queue_.add(kB);
  queue_.add_first(kA);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.add(kA);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), kB);
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkqueueTest, a_key_with_a_deadline_that_goes_first_is_due_now) {
  queue_.add_after(kA, seconds(10));
  queue_.add_first(kA);
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  clock_.turn(seconds(20));
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkqueueTest, a_negative_delay_counts_as_zero) {
  queue_.add_after(kA, seconds(-1));
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkqueueTest, failures_back_off_per_key_doubling_from_5_ms_to_60_s) {
  milliseconds expected{5};
  for (int failure = 1; failure <= 40; ++failure) {
    queue_.add_with_backoff(kA);
    clock_.turn(expected - milliseconds(1));
    ASSERT_EQ(queue_.try_get(), std::nullopt) << failure;
    clock_.turn(milliseconds(1));
    ASSERT_EQ(queue_.try_get(), kA) << failure;
    queue_.done(kA);
    expected = std::min<milliseconds>(expected * 2, seconds(60));
  }
  queue_.add_with_backoff(kB);
  clock_.turn(milliseconds(5));
  EXPECT_EQ(queue_.try_get(), kB) << "another key has failures of its own";
}

TEST_F(WorkqueueTest, backoff_begins_anew_after_forget) {
  for (int i = 0; i < 5; ++i) queue_.add_with_backoff(kA);
  clock_.turn(seconds(1));
  ASSERT_EQ(queue_.try_get(), kA);
  queue_.forget(kA);
  queue_.done(kA);
  queue_.add_with_backoff(kA);
  clock_.turn(milliseconds(5));
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkqueueTest, forget_keeps_the_key_in_line) {
  queue_.add(kA);
  queue_.forget(kA);
  queue_.forget(kB);
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkqueueTest, statistics_count_what_is_where) {
  queue_.add(kA);
  queue_.add(kB);
  queue_.add_after(kC, seconds(60));
  ASSERT_EQ(queue_.try_get(), kA);
  clock_.turn(seconds(3));
  ASSERT_EQ(queue_.try_get(), kB);
  clock_.turn(seconds(1));
  queue_.add(kA);
  const Workqueue::Statistics now = queue_.statistics();
  EXPECT_EQ(now.depth, 0U) << "a key that is worked on waits for its worker, not in line";
  EXPECT_EQ(now.adds, 4U);
  EXPECT_EQ(now.retries, 1U);
  EXPECT_EQ(now.longest_running, seconds(4));
  EXPECT_EQ(now.unfinished_work, seconds(5));
  clock_.turn(seconds(60));
  EXPECT_EQ(queue_.statistics().depth, 1U);
}

TEST(Workqueue, tells_how_long_keys_waited_and_were_worked_on) {
  TestClock clock;
  std::vector<Clock::duration> waited;
  std::vector<Clock::duration> worked;
  Workqueue queue({.now = clock.source(),
                   .on_queued = [&](Clock::duration time) { waited.push_back(time); },
                   .on_worked = [&](Clock::duration time) { worked.push_back(time); }});
  queue.add_after(kA, seconds(5));
  clock.turn(seconds(7));
  ASSERT_EQ(queue.try_get(), kA);
  clock.turn(seconds(3));
  queue.done(kA);
  EXPECT_EQ(waited, std::vector<Clock::duration>{seconds(2)}) << "from the deadline, not from the request";
  EXPECT_EQ(worked, std::vector<Clock::duration>{seconds(3)});
}

TEST(WorkqueueDeath, done_without_get_is_a_programmers_error) {
  Workqueue queue;
  EXPECT_DEATH(queue.done(kA), "done without get");
}

TEST(Workqueue, get_waits_for_a_key_and_for_its_time) {
  Workqueue queue;
  const Clock::time_point began = Clock::now();
  std::jthread adder([&] { queue.add_after(kA, milliseconds(20)); });
  EXPECT_EQ(queue.get({}), kA);
  EXPECT_GE(Clock::now() - began, milliseconds(20));
}

TEST(Workqueue, get_returns_nothing_once_it_is_told_to_stop) {
  Workqueue queue;
  queue.add_after(kA, std::chrono::hours(1));
  std::stop_source stop;
  std::optional<api::ObjectKey> got = kB;
  std::jthread worker([&] { got = queue.get(stop.get_token()); });
  stop.request_stop();
  worker.join();
  EXPECT_EQ(got, std::nullopt);
}

TEST(Workqueue, a_new_earlier_deadline_reaches_whoever_waits) {
  // All wait for a deadline an hour away; each of these keys must find a worker nevertheless.
  Workqueue queue;
  queue.add_after({"ns", "later"}, std::chrono::hours(1));
  constexpr int kKeys = 200;
  std::latch all(kKeys);
  std::stop_source stop;
  std::vector<std::jthread> workers;
  workers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      while (const auto key = queue.get(stop.get_token())) {
        queue.done(*key);
        all.count_down();
      }
    });
  }
  for (int i = 0; i < kKeys; ++i) queue.add_after({"ns", std::to_string(i)}, milliseconds(i % 7));
  all.wait();
  stop.request_stop();
}

TEST(Workqueue, no_key_is_lost_or_held_twice_under_many_threads) {
  Workqueue queue;
  constexpr int kKeys = 16;
  constexpr int kAddsPerThread = 5000;
  // What each key must have been worked on after: the number of adds that had been made before the hand-out.
  std::vector<std::atomic<int>> added(kKeys);
  std::vector<std::atomic<int>> seen(kKeys);
  std::vector<std::atomic<bool>> held(kKeys);
  std::atomic<bool> twice{false};
  std::stop_source stop;
  {
    std::vector<std::jthread> workers;
    workers.reserve(4);
    for (int i = 0; i < 4; ++i) {
      workers.emplace_back([&] {
        while (const auto key = queue.get(stop.get_token())) {
          const auto index = static_cast<size_t>(std::stoi(key->name));
          if (held[index].exchange(true)) twice = true;
          seen[index] = added[index].load();
          if (seen[index] % 5 == 0) queue.add_with_backoff(*key);
          queue.forget(*key);
          held[index] = false;
          queue.done(*key);
        }
      });
    }
    {
      std::vector<std::jthread> adders;
      adders.reserve(3);
      for (int i = 0; i < 3; ++i) {
        adders.emplace_back([&, i] {
          for (int n = 0; n < kAddsPerThread; ++n) {
            const auto index = static_cast<size_t>((n * 7 + i) % kKeys);
            ++added[index];
            queue.add({"", std::to_string(index)});
          }
        });
      }
    }
    // The queue runs dry but for the keys that failed on purpose; the last of those succeed when nothing is divisible.
    for (size_t index = 0; index < kKeys; ++index) {
      while (seen[index].load() != added[index].load()) std::this_thread::yield();
    }
    stop.request_stop();
  }
  EXPECT_FALSE(twice);
}

}  // namespace
}  // namespace lockstep::control
