// The devices that this build and this machine have: tests of what has a CPU and a CUDA twin run on each.
#pragma once

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace lockstep {

inline std::vector<at::DeviceType> devices() {
  std::vector<at::DeviceType> devices{at::kCPU};
  if (torch::cuda::is_available()) devices.push_back(at::kCUDA);
  return devices;
}

inline std::string device_name(const testing::TestParamInfo<at::DeviceType>& test) {
  return test.param == at::kCUDA ? "cuda" : "cpu";
}

}  // namespace lockstep
