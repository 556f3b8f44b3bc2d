#include "runner/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

std::string holder_of(int fd) {
  std::array<char, 32> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size() - 1, 0);
  return length > 0 ? std::string(text.data(), static_cast<size_t>(length)) : std::string("unknown");
}

}  // namespace

Result<FileLock> FileLock::take(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileLock(-1);  // not an error here: the checkpoint writer reports a folder that cannot be written
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FileLock(fd);
    const std::string holder = holder_of(fd);
    ::close(fd);
    return Error{ErrorCode::kConflict, path + " is held by process " + holder +
                                           ": another run writes to this folder; wait for its end, or give another "
                                           "folder"};
  }
  const std::string pid = std::to_string(::getpid());
  const bool noted = ::ftruncate(fd, 0) == 0 && ::pwrite(fd, pid.data(), pid.size(), 0) > 0;
  static_cast<void>(noted);  // the process number is only for messages; the lock does not depend on it
  return FileLock(fd);
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lockstep
