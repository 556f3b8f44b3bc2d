#include "operator/kube/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "runner/base/file_system.h"

namespace lockstep::kube {
namespace {

Result<std::string> read_descriptor(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return error_of_errno(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return invalid(path, "is not a file");
  std::string bytes;
  std::array<char, 16384> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
  while (true) {
    const ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n == 0) return bytes;
    if (n < 0) {
      if (errno == EINTR) continue;
      return error_of_errno(errno, "read", path);
    }
    bytes.append(chunk.data(), static_cast<size_t>(n));
    if (bytes.size() > kSmallFileBytesMax) {
      return invalid(path, "is larger than " + std::to_string(kSmallFileBytesMax) + " bytes; is it the right file?");
    }
  }
}

}  // namespace

Result<std::string> read_small_file(const std::string& path) {
  // O_NONBLOCK: a named pipe that nobody writes to must not block this thread.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return error_of_errno(errno, "open", path);
  Result<std::string> bytes = read_descriptor(fd, path);
  ::close(fd);
  return bytes;
}

std::string file_signature(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  std::string text;
  for (const auto part :
       {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
        static_cast<int64_t>(info.st_ctim.tv_sec), static_cast<int64_t>(info.st_ctim.tv_nsec)}) {
    text.append(std::to_string(part)).append("/");
  }
  return text;
}

}  // namespace lockstep::kube
