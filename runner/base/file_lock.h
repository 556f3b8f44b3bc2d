// FileLock: a lock between processes (flock(2)). The kernel releases it when the process that holds it ends.
// Threads: a value of one thread.
#pragma once

#include <string>

#include "runner/base/result.h"

namespace lockstep {

class FileLock {
 public:
  // kConflict when another process holds the lock; names the file and that process. On a file system without locks
  // (some network volumes) it succeeds, and the lock protects nothing; there only the generations keep an old writer
  // out.
  static Result<FileLock> take(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace lockstep
