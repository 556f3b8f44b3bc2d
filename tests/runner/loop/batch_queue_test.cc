#include "runner/loop/batch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <variant>
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
    if (share.samples.front() == too_large_sample) throw std::bad_alloc();
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
  int64_t too_large_sample = -1;

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

bool is_batch(const FetchedBatch& fetched) { return std::holds_alternative<HostBatch>(fetched); }

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
      const HostBatch taken = std::get<HostBatch>(queue.take(share, kNeverCut));
      EXPECT_TRUE(torch::equal(taken.tensors[0].tensor, workload.ToyWorkload::fetch(share)->tensors[0].tensor));
    }
    EXPECT_EQ(workload.fetches, 5) << "each once, with " << threads << " threads";
  }
}

TEST(BatchQueue, keeps_what_is_wanted_again_and_fetches_nothing_twice) {
  const CountingToy workload;
  BatchQueue queue(workload, 2, at::kCPU);
  queue.want({share_of_sample(1), share_of_sample(2)});
  ASSERT_TRUE(is_batch(queue.take(share_of_sample(1), kNeverCut)));
  queue.want({share_of_sample(2), share_of_sample(3)});
  ASSERT_TRUE(is_batch(queue.take(share_of_sample(2), kNeverCut)));
  ASSERT_TRUE(is_batch(queue.take(share_of_sample(3), kNeverCut)));
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
  EXPECT_TRUE(is_batch(queue.take(share_of_sample(8), kNeverCut)));
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
    workload.too_large_sample = 7;
    BatchQueue queue(workload, threads, at::kCPU);
    queue.want({share_of_sample(5), share_of_sample(6), share_of_sample(7)});
    const auto failure = [&](int64_t sample) {
      return std::get<Failure>(queue.take(share_of_sample(sample), kNeverCut));
    };
    const Failure unreadable = failure(5), thrown = failure(6), too_large = failure(7);
    EXPECT_EQ(unreadable.code, ExitCode::kData);
    EXPECT_THAT(unreadable.message, HasSubstr("sentence 13 is torn"));
    EXPECT_EQ(thrown.code, ExitCode::kCrash) << "it may go well after a restart";
    EXPECT_THAT(thrown.message, HasSubstr("no more threads"));
    EXPECT_EQ(too_large.code, ExitCode::kOutOfMemory);
  }
}

}  // namespace
}  // namespace lockstep
