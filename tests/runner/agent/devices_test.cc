#include "runner/agent/devices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runner/agent/worker_process.h"

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

TEST(OomKillCounter, sees_each_rise_once) {
  const std::string path = (std::filesystem::temp_directory_path() / "lockstep-oom-XXXXXX").string();
  std::string name = path;
  ASSERT_GE(::mkstemp(name.data()), 0);
  std::ofstream(name) << "low 0\noom 4\noom_kill 2\n";
  OomKillCounter counter(name);
  EXPECT_EQ(counter.risen(), 0);
  std::ofstream(name) << "low 0\noom 5\noom_kill 3\n";
  EXPECT_EQ(counter.risen(), 1);
  EXPECT_EQ(counter.risen(), 0);
  std::filesystem::remove(name);
  EXPECT_EQ(counter.risen(), 0);
}

}  // namespace
}  // namespace lockstep
