// Which GPUs a build has code for. Pure.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

struct ComputeCapability {
  int major = 0;
  int minor = 0;
};

// "9.0"
std::string to_string(ComputeCapability capability);

// `built`: what the kernels were compiled for, as PyTorch's list has it: "7.5,8.0,9.0+PTX". Machine code runs on its
// own major version from its own minor on; PTX is compiled by the driver for everything from its version on.
bool has_code_for(std::string_view built, ComputeCapability gpu);

}  // namespace lockstep
