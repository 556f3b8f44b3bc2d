#include "runner/loop/batch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runner/dist/fault.h"
#include "tests/runner/loop/toy_workload.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// Counts fetches, and lets those of one sample wait until it is told.
class CountingToy final : public ToyWorkload {
 public:
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    ++fetches;
    if (share.samples.front() == slow_sample) {
      std::unique_lock lock(mutex_);
      slow_began_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_let_go_; });
    }
    if (share.samples.front() == throwing_sample) throw std::runtime_error("no more threads");
    return ToyWorkload::fetch(share);
  }
  void wait_for_slow_fetch() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return slow_began_; });
  }
  void let_go() const {
    {
      const std::lock_guard lock(mutex_);
      is_let_go_ = true;
    }
    changed_.notify_all();
  }

  mutable std::atomic<int> fetches = 0;
  int64_t slow_sample = -1;
  int64_t throwing_sample = -1;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool slow_began_ = false;
  mutable bool is_let_go_ = false;
};

BatchShare share_of_sample(int64_t sample, int64_t step = 0) {
  return {.seed = 1, .step = step, .epoch = 0, .first_slot = 0, .samples = {sample}};
}

const auto kNeverCut = [] { return false; };

// Of this process, as `top -H` and gdb show them.
std::vector<std::string> thread_names() {
  std::vector<std::string> names;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");  // empty of a thread that has ended meanwhile
    std::getline(file, names.emplace_back());
  }
  return names;
}

TEST(BatchQueue, gives_what_the_workload_fetches_with_and_without_threads) {
  for (const int64_t threads : {0, 1, 3}) {
    const CountingToy workload;
    BatchQueue queue(workload, threads, at::kCPU);
    std::vector<BatchShare> shares;
    for (int64_t step = 0; step < 5; ++step) shares.push_back(share_of_sample(step * 3, step));
    queue.want(shares);
    for (const BatchShare& share : shares) {
      const Result<HostBatch> taken = queue.take(share, kNeverCut);
      ASSERT_TRUE(taken.ok());
      EXPECT_TRUE(torch::equal(taken->tensors[0].tensor, workload.ToyWorkload::fetch(share)->tensors[0].tensor));
    }
    EXPECT_EQ(workload.fetches, 5) << "each once, with " << threads << " threads";
  }
}

TEST(BatchQueue, keeps_what_is_wanted_again_and_fetches_nothing_twice) {
  const CountingToy workload;
  BatchQueue queue(workload, 2, at::kCPU);
  queue.want({share_of_sample(1), share_of_sample(2)});
  ASSERT_TRUE(queue.take(share_of_sample(1), kNeverCut).ok());
  queue.want({share_of_sample(2), share_of_sample(3)});
  ASSERT_TRUE(queue.take(share_of_sample(2), kNeverCut).ok());
  ASSERT_TRUE(queue.take(share_of_sample(3), kNeverCut).ok());
  EXPECT_EQ(workload.fetches, 3);
}

// A new group's first batch must not wait for one that the old group wanted.
TEST(BatchQueue, gives_another_share_while_a_dropped_one_is_still_being_fetched) {
  CountingToy workload;
  workload.slow_sample = 7;
  BatchQueue queue(workload, 1, at::kCPU);
  queue.want({share_of_sample(7)});
  workload.wait_for_slow_fetch();
  queue.want({share_of_sample(8)});
  EXPECT_TRUE(queue.take(share_of_sample(8), kNeverCut).ok());
  workload.let_go();
}

TEST(BatchQueue, fetches_on_threads_of_that_name) {
  CountingToy workload;
  workload.slow_sample = 7;
  BatchQueue queue(workload, 1, at::kCPU);
  queue.want({share_of_sample(7)});
  workload.wait_for_slow_fetch();
  EXPECT_THAT(thread_names(), Contains("fetch"));
  workload.let_go();
}

TEST(BatchQueue, leaves_a_group_that_is_cut_while_a_batch_is_slow) {
  CountingToy workload;
  workload.slow_sample = 7;
  BatchQueue queue(workload, 1, at::kCPU);
  queue.want({share_of_sample(7)});
  workload.wait_for_slow_fetch();
  try {
    static_cast<void>(queue.take(share_of_sample(7), [] { return true; }));
    FAIL() << "it waits for the batch of a group that is gone";
  } catch (const std::exception& e) {
    EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
  }
  workload.let_go();
}

TEST(BatchQueue, hands_on_what_went_wrong_in_a_fetch) {
  for (const int64_t threads : {0, 1}) {
    CountingToy workload;
    workload.unreadable_sample = 5;
    workload.throwing_sample = 6;
    BatchQueue queue(workload, threads, at::kCPU);
    queue.want({share_of_sample(5), share_of_sample(6)});
    EXPECT_THAT(queue.take(share_of_sample(5), kNeverCut).error().message, HasSubstr("sentence 13 is torn"));
    EXPECT_THAT(queue.take(share_of_sample(6), kNeverCut).error().message, HasSubstr("no more threads"));
  }
}

}  // namespace
}  // namespace lockstep
