// The version of this program: that of the CMake project.
#pragma once

namespace lockstep {

// "0.1.0"
const char* build_version();

}  // namespace lockstep
