#include "runner/agent/gpu_use.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A driver that answers `answers` times and then blocks until `release` is set.
struct Driver {
  int answers = 0;
  std::atomic<int> asked{0};
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();

  std::vector<GpuUse> use() {
    if (++asked > answers) released.wait();
    return {GpuUse{.index = 0, .memory_used_bytes = asked}};
  }
};

TEST(GpuUseReader, keeps_the_newest_answer_of_a_driver_that_stops_answering) {
  const auto driver = std::make_shared<Driver>();
  driver->answers = 3;
  const GpuUseReader reader([driver] { return driver->use(); }, 1ms);
  while (driver->asked <= driver->answers) std::this_thread::yield();
  const std::vector<GpuUse> newest = reader.newest(now());
  ASSERT_EQ(newest.size(), 1U);
  EXPECT_EQ(newest.at(0).memory_used_bytes, 3);
  EXPECT_TRUE(reader.newest(now() + kGpuUseAgeMax + 1s).empty()) << "that was long ago";
  driver->release.set_value();
}

TEST(GpuUseReader, waits_for_no_driver) {
  const auto driver = std::make_shared<Driver>();
  {
    const GpuUseReader reader([driver] { return driver->use(); }, 1ms);
    EXPECT_TRUE(reader.newest(now()).empty());
  }
  driver->release.set_value();
}

TEST(GpuUseReader, asks_again_and_again_until_it_is_gone) {
  const auto driver = std::make_shared<Driver>();
  driver->answers = 1'000'000'000;
  {
    const GpuUseReader reader([driver] { return driver->use(); }, 1ms);
    while (driver->asked < 3) std::this_thread::yield();
  }
  while (driver.use_count() > 1) std::this_thread::yield();  // its thread has ended
}

}  // namespace
}  // namespace lockstep
