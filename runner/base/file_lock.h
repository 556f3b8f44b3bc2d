// FileLock: one process at a time, by flock(2). The kernel releases it when its holder ends, however it ends.
// Threads: a value of one thread.
#pragma once

#include <string>

#include "runner/base/result.h"

namespace lockstep {

class FileLock {
 public:
  // kConflict when another process holds it: names the file and that process. A file system without locks (some
  // network volumes) gives a lock that guards nothing: whoever writes there is fenced by generations alone.
  static Result<FileLock> take(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace lockstep
