#include "runner/telemetry/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"

namespace lockstep {

Result<AppendFile> AppendFile::open(const std::string& path, Mode mode) {
  const int create = mode == Mode::kMustBeNew ? O_CREAT | O_EXCL : 0;
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | create, 0644);
  if (fd < 0) return error_of_errno(errno, "open", path);
  AppendFile file(path, fd, 0);
  struct stat info {};
  if (::fstat(fd, &info) != 0) return error_of_errno(errno, "stat", path);
  file.size_ = info.st_size;
  return file;
}

Result<AppendFile> AppendFile::replace(FileSystem& fs, const std::string& path, std::string_view text) {
  const std::string temporary = join_path(parent_path(path), ".tmp-" + base_name(path));
  std::optional<AppendFile> file;
  const auto write_and_open = [&](const ByteSink& sink) -> Status {
    TRY(sink(text.data(), text.size()));
    TRY_ASSIGN(file, open(temporary, Mode::kMustExist));
    return {};
  };
  TRY(write_file_atomically(fs, path, write_and_open, temporary));
  file->path_ = path;
  return std::move(*file);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      torn_(other.torn_),
      failing_(other.failing_) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(torn_, other.torn_);
  std::swap(failing_, other.failing_);
  return *this;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status AppendFile::append(std::string_view record) {
  Status written = write_whole(record);
  const bool is_first_error = !written.ok() && !failing_;
  failing_ = !written.ok();
  return is_first_error ? written : Status();
}

Status AppendFile::write_whole(std::string_view record) {
  if (torn_ && ::ftruncate(fd_, size_) != 0) return error_of_errno(errno, "truncate", path_);
  torn_ = false;
  ssize_t written = 0;
  do {
    written = ::write(fd_, record.data(), record.size());
  } while (written < 0 && errno == EINTR);
  if (written < 0) return error_of_errno(errno, "write", path_);
  if (static_cast<size_t>(written) < record.size()) {
    torn_ = ::ftruncate(fd_, size_) != 0;
    return error_of_errno(ENOSPC, "write", path_);  // what a short write to a regular file means
  }
  size_ += written;
  return {};
}

Result<std::string> move_too_large(FileSystem& fs, const std::string& path, uint64_t bytes_max) {
  const Result<FileInfo> info = fs.stat(path);
  if (!info.ok() || info->kind != FileKind::kFile || info->bytes <= bytes_max) return std::string();
  int number = 1;
  while (fs.stat(path + "." + std::to_string(number)).ok()) ++number;
  std::string to = path + "." + std::to_string(number);
  TRY(fs.rename(path, to));
  return to;
}

}  // namespace lockstep
