#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

namespace {

// Code that includes ATen's headers without OpenMP would run it on one thread (cmake/LibTorch.cmake).
TEST(ParallelFor, uses_as_many_threads_as_it_is_given) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  at::parallel_for(0, 2, /*grain_size=*/1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  at::set_num_threads(threads);
  EXPECT_EQ(ids.size(), 2U);
}

}  // namespace
