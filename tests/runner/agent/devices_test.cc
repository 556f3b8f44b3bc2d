#include "runner/agent/devices.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep
