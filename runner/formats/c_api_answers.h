// What the functions of c_api.h answer, on a file system that a test can break.
#pragma once

#include <string>

#include "runner/base/file_system.h"

namespace lockstep {

enum class CheckpointCall { kFind, kPrepare, kWrite };

// The answer as JSON, with the field `error` where there is one; throws nothing.
std::string answer_of(CheckpointCall call, FileSystem& fs, const char* request);

}  // namespace lockstep
