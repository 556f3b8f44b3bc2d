#include "runner/agent/devices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runner/agent/worker_process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

struct Case {
  std::optional<std::string> variable;
  std::vector<int> visible;
};

TEST(VisibleGpus, follow_cuda_visible_devices_as_the_driver_does) {
  const std::vector<std::string> uuids{"GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbbb-3"};
  const std::vector<Case> cases{
      {std::nullopt, {0, 1, 2}}, {"", {}},           {"2,0", {2, 0}},
      {" 1 , 2", {1, 2}},        {"0,7,1", {0}},     {"-1", {}},
      {"0,-1,1", {0}},           {"0,0", {}},        {"GPU-bbbb-3,0", {2, 0}},
      {"GPU-aaaa", {0}},         {"GPU-none,1", {}}, {"MIG-x/1/2", {-1}},
      {"nonsense", {}},          {"1x", {}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(visible_gpus(c.variable, uuids), c.visible) << c.variable.value_or("(unset)");
  }
}

class OomKills : public testing::Test {
 protected:
  void say(int kills) const { std::ofstream(path()) << "low 0\noom 9\noom_kill " << kills << "\n"; }
  [[nodiscard]] std::string path() const { return folder_.path() + "/memory.events"; }

  const OomKillCounter::TimePoint at_{std::chrono::hours(1)};

 private:
  TemporaryFolder folder_;
};

TEST_F(OomKills, are_taken_once_each_however_many_come_together) {
  say(2);
  OomKillCounter counter(path());
  EXPECT_FALSE(counter.take_one(at_));
  say(4);
  EXPECT_TRUE(counter.take_one(at_));
  EXPECT_TRUE(counter.take_one(at_ + kOomKillsTogether));  // its end is told a moment later
  EXPECT_FALSE(counter.take_one(at_ + kOomKillsTogether));
}

TEST_F(OomKills, of_others_are_not_laid_upon_who_is_killed_later) {
  say(0);
  OomKillCounter counter(path());
  say(3);
  EXPECT_TRUE(counter.take_one(at_));
  const auto later = at_ + 2 * kOomKillsTogether;
  EXPECT_FALSE(counter.take_one(later));
  say(4);
  EXPECT_TRUE(counter.take_one(later));
  EXPECT_FALSE(counter.take_one(later));
  std::filesystem::remove(path());
  EXPECT_FALSE(counter.take_one(later));
}

}  // namespace
}  // namespace lockstep
