// Which program this is. The version is the CMake project's.
#pragma once

namespace lockstep {

// "0.1.0"
const char* build_version();

}  // namespace lockstep
