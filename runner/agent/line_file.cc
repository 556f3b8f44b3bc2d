#include "runner/agent/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runner/base/file_system.h"

namespace lockstep {

Result<LineFile> LineFile::open(const std::string& path) {
  // O_NONBLOCK, because opening a named pipe would block otherwise.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return error_of_errno(errno, "open", path);
  LineFile file(path, descriptor);
  struct ::stat info = {};
  if (::fstat(descriptor, &info) != 0) return error_of_errno(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return Error{ErrorCode::kInvalid, path + " is no plain file"};
  return file;
}

LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      offset_(other.offset_),
      is_skipping_(other.is_skipping_),
      is_behind_(other.is_behind_) {}

LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(offset_, other.offset_);
  std::swap(is_skipping_, other.is_skipping_);
  std::swap(is_behind_, other.is_behind_);
  return *this;
}

LineFile::~LineFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool LineFile::is_replaced() const {
  struct ::stat ours = {};
  struct ::stat there = {};
  if (::fstat(descriptor_, &ours) != 0 || ::lstat(path_.c_str(), &there) != 0) return true;
  const bool is_same = ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  return !is_same || static_cast<uint64_t>(ours.st_size) < offset_;
}

Status LineFile::read(uint64_t bytes_max, const LineConsumer& consumer) {
  std::string piece(kFileLineMax, '\0');
  for (uint64_t bytes = 0; bytes < bytes_max;) {
    const ssize_t got = ::pread(descriptor_, piece.data(), piece.size(), static_cast<off_t>(offset_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error_of_errno(errno, "read", path_);
    std::string_view rest(piece.data(), static_cast<size_t>(got));
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      is_skipping_ ? consumer.too_long() : consumer.line(rest.substr(0, end));
      is_skipping_ = false;
      rest.remove_prefix(end + 1);
    }
    const bool is_whole_piece = rest.size() == piece.size();
    if (is_whole_piece) {  // no line ends here
      is_skipping_ = true;
      rest = {};
    }
    const uint64_t taken = static_cast<uint64_t>(got) - rest.size();
    offset_ += taken;
    bytes += taken;
    is_behind_ = taken > 0;
    if (!is_behind_) return {};
  }
  return {};
}

}  // namespace lockstep
