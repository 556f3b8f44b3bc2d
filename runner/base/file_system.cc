#include "runner/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

namespace lockstep {
namespace {

constexpr size_t kReadPieceBytes = size_t{4} << 20;  // large enough that the overhead of the calls does not matter
// A file is written in pieces of this size, with an fsync after each. A single fsync at the end of a large file could
// take minutes without a sign of progress, and the whole file would be in the page cache, which counts as the pod's
// memory.
constexpr size_t kWritePieceBytes = size_t{256} << 20;

ErrorCode code_of_errno(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return ErrorCode::kConflict;
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
    case EISDIR:
      return ErrorCode::kInvalid;
    default:
      return ErrorCode::kUnavailable;
  }
}

// Repeats a system call while it fails with EINTR.
template <typename Call>
auto retry_on_eintr(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string descriptor_text(FileHandle file) { return "file descriptor " + std::to_string(file.descriptor); }

FileKind kind_of_mode(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kFile;
  return S_ISDIR(mode) ? FileKind::kDirectory : FileKind::kOther;
}

FileInfo info_of(const struct ::stat& info) {
  return {.kind = kind_of_mode(info.st_mode),
          .bytes = static_cast<uint64_t>(info.st_size),
          .identity = {info.st_dev, info.st_ino}};
}

Result<FileHandle> open_file(const std::string& path, int flags) {
  const int descriptor = retry_on_eintr([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); });
  if (descriptor < 0) return error_of_errno(errno, "open", path);
  return FileHandle{descriptor};
}

// Closes the file and returns `result`, or the error of close() if `result` is ok.
template <typename T>
Result<T> close_after(FileSystem& fs, FileHandle file, Result<T> result, const std::string& path) {
  const Status closed = fs.close(file);
  if (result.ok() && !closed.ok()) return closed.error().with_context(path);
  return result;
}

}  // namespace

Error error_of_errno(int errno_value, std::string_view call, const std::string& path) {
  const bool is_full = errno_value == ENOSPC || errno_value == EDQUOT;
  return Error{code_of_errno(errno_value),
               std::string(call) + " " + path + ": " + std::generic_category().message(errno_value),
               is_full ? kNoSpace : ""};
}

Result<FileHandle> PosixFileSystem::open_for_write(const std::string& path) {
  return open_file(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
}

Result<FileHandle> PosixFileSystem::open_for_read(const std::string& path) {
  return open_file(path, links_ == Links::kRefused ? O_RDONLY | O_NOFOLLOW | O_NONBLOCK : O_RDONLY);
}

Result<FileHandle> PosixFileSystem::open_for_append(const std::string& path, Append append) {
  int create = append == Append::kToExisting ? 0 : O_CREAT;
  if (append == Append::kToNew) create |= O_EXCL;
  return open_file(path, O_WRONLY | O_APPEND | O_NOFOLLOW | create);
}

Result<size_t> PosixFileSystem::write(FileHandle file, const void* data, size_t bytes) {
  const ssize_t written = retry_on_eintr([&] { return ::write(file.descriptor, data, bytes); });
  if (written < 0) return error_of_errno(errno, "write", descriptor_text(file));
  return static_cast<size_t>(written);
}

Result<size_t> PosixFileSystem::read(FileHandle file, void* data, size_t bytes) {
  const ssize_t got = retry_on_eintr([&] { return ::read(file.descriptor, data, bytes); });
  if (got < 0) return error_of_errno(errno, "read", descriptor_text(file));
  return static_cast<size_t>(got);
}

Result<size_t> PosixFileSystem::read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) {
  const ssize_t got = retry_on_eintr([&] { return ::pread(file.descriptor, data, bytes, static_cast<off_t>(offset)); });
  if (got < 0) return error_of_errno(errno, "read", descriptor_text(file));
  return static_cast<size_t>(got);
}

Status PosixFileSystem::fsync(FileHandle file) {
  if (retry_on_eintr([&] { return ::fsync(file.descriptor); }) != 0) {
    return error_of_errno(errno, "fsync", descriptor_text(file));
  }
  return {};
}

Status PosixFileSystem::truncate(FileHandle file, uint64_t bytes) {
  if (retry_on_eintr([&] { return ::ftruncate(file.descriptor, static_cast<off_t>(bytes)); }) != 0) {
    return error_of_errno(errno, "truncate", descriptor_text(file));
  }
  return {};
}

Status PosixFileSystem::close(FileHandle file) {
  // Not repeated after EINTR, because Linux has released the descriptor even then.
  if (::close(file.descriptor) != 0 && errno != EINTR) return error_of_errno(errno, "close", descriptor_text(file));
  return {};
}

Status PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return error_of_errno(errno, "rename", from + " to " + to);
  return {};
}

Status PosixFileSystem::make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0) return error_of_errno(errno, "mkdir", path);
  return {};
}

Status PosixFileSystem::fsync_directory(const std::string& path) {
  const int descriptor = retry_on_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) return error_of_errno(errno, "open", path);
  const int result = retry_on_eintr([&] { return ::fsync(descriptor); });
  const int errno_value = errno;
  ::close(descriptor);
  if (result != 0) return error_of_errno(errno_value, "fsync", path);
  return {};
}

Status PosixFileSystem::remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return error_of_errno(errno, "unlink", path);
  return {};
}

Status PosixFileSystem::remove_directory(const std::string& path) {
  if (::rmdir(path.c_str()) != 0) return error_of_errno(errno, "rmdir", path);
  return {};
}

Result<std::vector<DirectoryEntry>> PosixFileSystem::list(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
  if (!directory) return error_of_errno(errno, "opendir", path);
  std::vector<DirectoryEntry> entries;
  for (;;) {
    errno = 0;
    const dirent* found = ::readdir(directory.get());
    if (found == nullptr) break;
    const std::string name = found->d_name;
    if (name == "." || name == "..") continue;
    // Uses stat, because d_type is unknown on some file systems. A name that has vanished meanwhile is left out.
    const Result<FileInfo> info = stat(join_path(path, name));
    if (info.ok()) entries.push_back({name, info->kind});
  }
  if (errno != 0) return error_of_errno(errno, "readdir", path);
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

Result<FileInfo> PosixFileSystem::stat(const std::string& path) {
  struct ::stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return error_of_errno(errno, "stat", path);
  return info_of(info);
}

Result<FileInfo> PosixFileSystem::fstat(FileHandle file) {
  struct ::stat info = {};
  if (::fstat(file.descriptor, &info) != 0) return error_of_errno(errno, "fstat", descriptor_text(file));
  return info_of(info);
}

Status write_all(FileSystem& fs, FileHandle file, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    TRY_ASSIGN(const size_t written, fs.write(file, next, bytes));
    if (written == 0) return Error{ErrorCode::kUnavailable, "write wrote nothing"};
    next += written;
    bytes -= written;
  }
  return {};
}

Status write_file(FileSystem& fs, const std::string& path, const std::function<Status(const ByteSink&)>& produce) {
  TRY_ASSIGN(const FileHandle file, fs.open_for_write(path));
  size_t not_durable = 0;
  const auto write_in_pieces = [&](const void* data, size_t bytes) -> Status {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const size_t piece = std::min(bytes, kWritePieceBytes - not_durable);
      TRY(write_all(fs, file, next, piece));
      next += piece;
      bytes -= piece;
      not_durable += piece;
      if (not_durable < kWritePieceBytes) continue;
      TRY(fs.fsync(file));
      not_durable = 0;
    }
    return {};
  };
  Status status = produce(write_in_pieces);
  if (status.ok()) status = fs.fsync(file);
  if (!status.ok()) status = status.error().with_context(path);
  return close_after(fs, file, status, path);
}

Status read_file(FileSystem& fs, const std::string& path, const ByteSink& sink) {
  TRY_ASSIGN(const FileHandle file, fs.open_for_read(path));
  std::string piece(kReadPieceBytes, '\0');
  const auto copy = [&]() -> Status {
    for (;;) {
      const Result<size_t> got = fs.read(file, piece.data(), piece.size());
      if (!got.ok()) return got.error().with_context(path);
      if (*got == 0) return {};
      TRY(sink(piece.data(), *got));
    }
  };
  return close_after(fs, file, copy(), path);
}

Result<std::string> read_file(FileSystem& fs, const std::string& path, uint64_t bytes_max,
                              const std::function<void()>& on_progress) {
  TRY_ASSIGN(const FileHandle file, fs.open_for_read(path));
  const auto too_large = [&](uint64_t found) {
    return Error{ErrorCode::kInvalid,
                 path + " has " + std::to_string(found) + " bytes; at most " + std::to_string(bytes_max) + " are read"};
  };
  const auto copy = [&]() -> Result<std::string> {
    const Result<FileInfo> info = fs.fstat(file);
    if (!info.ok()) return info.error().with_context(path);
    if (info->kind == FileKind::kDirectory) return Error{ErrorCode::kInvalid, path + " is a folder, not a file"};
    if (info->bytes > bytes_max) return too_large(info->bytes);
    // One byte more than the expected size, so that the end of the file is reached without growing the buffer.
    std::string bytes(info->bytes + 1, '\0');
    size_t size = 0;
    for (;;) {
      const Result<size_t> got = fs.read(file, bytes.data() + size, std::min(bytes.size() - size, kReadPieceBytes));
      if (!got.ok()) return got.error().with_context(path);
      if (*got == 0) break;
      on_progress();
      size += *got;
      if (size > bytes_max) return too_large(size);
      if (size == bytes.size()) bytes.resize(size * 2);
    }
    bytes.resize(size);
    return bytes;
  };
  return close_after(fs, file, copy(), path);
}

Result<std::string> read_part(FileSystem& fs, const std::string& path, uint64_t offset, size_t bytes) {
  TRY_ASSIGN(const FileHandle handle, fs.open_for_read(path));
  const OpenFile file(fs, handle);
  std::string part(bytes, '\0');
  size_t size = 0;
  while (size < bytes) {
    const Result<size_t> got = fs.read_at(handle, offset + size, part.data() + size, bytes - size);
    if (!got.ok()) return got.error().with_context(path);
    if (*got == 0) break;
    size += *got;
  }
  part.resize(size);
  return part;
}

Status make_directories(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.stat(path);
  if (info.ok() && info->kind == FileKind::kDirectory) return {};
  if (info.ok() && info->kind == FileKind::kFile) {
    return Error{ErrorCode::kInvalid, path + " is a file; a folder was expected"};
  }
  if (!info.ok() && info.error().code != ErrorCode::kNotFound) return info.error();
  const std::string parent = parent_path(path);
  if (parent != path) TRY(make_directories(fs, parent));
  const Status made = fs.make_directory(path);
  // Another process may have made it meanwhile. A link to a folder counts as a folder.
  if (!made.ok() && made.error().code == ErrorCode::kConflict) return {};
  TRY(made);
  return fs.fsync_directory(parent);
}

Status remove_tree(FileSystem& fs, const std::string& path) {
  const auto ignore_missing = [](Status status) -> Status {
    if (!status.ok() && status.error().code == ErrorCode::kNotFound) return {};
    return status;
  };
  const Result<FileInfo> info = fs.stat(path);
  if (!info.ok()) return ignore_missing(info.error());
  if (info->kind != FileKind::kDirectory) return ignore_missing(fs.remove_file(path));
  const Result<std::vector<DirectoryEntry>> entries = fs.list(path);
  if (!entries.ok()) return ignore_missing(entries.error());
  for (const DirectoryEntry& entry : *entries) TRY(remove_tree(fs, join_path(path, entry.name)));
  return ignore_missing(fs.remove_directory(path));
}

std::string join_path(const std::string& folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  return folder.back() == '/' ? folder + std::string(name) : folder + "/" + std::string(name);
}

std::string parent_path(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

std::string base_name(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const size_t slash = path.rfind('/', end);
  return slash == std::string::npos ? path.substr(0, end + 1) : path.substr(slash + 1, end - slash);
}

}  // namespace lockstep
