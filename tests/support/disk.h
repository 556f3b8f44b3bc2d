// The real file system, for what takes the seam but is not to be broken in a test.
#pragma once

#include "runner/base/file_system.h"

namespace lockstep {

inline FileSystem& disk() {
  static PosixFileSystem fs;
  return fs;
}

}  // namespace lockstep
