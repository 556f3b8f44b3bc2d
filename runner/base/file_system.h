// FileSystem: the file operations through which everything durable is written and read.
//
// Role: the interface between this project's file protocols (checkpoints, `latest`, exports) and the disk, so that a
// test can make any single call fail or kill the process at it. PosixFileSystem implements it. Code above it never
// calls open, write or rename on a durable file itself.
// Threads: a FileSystem may be used by several threads at once; a file handle by one at a time.
// Symbolic links: a file is read through them, as Kubernetes mounts a ConfigMap's; it is never written through one in
// the last place of its path, and remove_tree never follows one.
// Errors: messages hold the call, the path and errno's text. kNotFound (ENOENT), kConflict (EEXIST, ENOTEMPTY),
// kUnavailable (full, read-only, forbidden, input/output error), kInvalid (an impossible path). The reason is kNoSpace
// when the volume or a quota of it is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

enum class FileKind { kFile, kDirectory, kOther };

struct FileInfo {
  FileKind kind = FileKind::kOther;
  uint64_t bytes = 0;
  std::pair<uint64_t, uint64_t> identity;  // device and inode: no two files have the same
};

struct DirectoryEntry {
  std::string name;
  FileKind kind = FileKind::kOther;
};

// An open file of one FileSystem; closed with close() exactly once.
struct FileHandle {
  int descriptor = -1;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the file, or empties the one that is there.
  virtual Result<FileHandle> open_for_write(const std::string& path) = 0;
  virtual Result<FileHandle> open_for_read(const std::string& path) = 0;
  // Each write goes to the end of the file, whatever others write there. kConflict: a file that must be new exists;
  // kNotFound: one that must exist does not. kToEither creates the file if it is missing.
  enum class Append { kToNew, kToExisting, kToEither };
  virtual Result<FileHandle> open_for_append(const std::string& path, Append append) = 0;
  // Bytes written: at least 1 for bytes > 0, possibly fewer than asked for. write_all() loops.
  virtual Result<size_t> write(FileHandle file, const void* data, size_t bytes) = 0;
  // Bytes read; 0 at the end of the file.
  virtual Result<size_t> read(FileHandle file, void* data, size_t bytes) = 0;
  // The same from a place in the file, which the next read() does not depend on.
  virtual Result<size_t> read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) = 0;
  virtual Status fsync(FileHandle file) = 0;
  // Cuts the file to its first `bytes`.
  virtual Status truncate(FileHandle file, uint64_t bytes) = 0;
  virtual Status close(FileHandle file) = 0;

  // Replaces a file, or an empty directory, at `to`.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status make_directory(const std::string& path) = 0;
  virtual Status fsync_directory(const std::string& path) = 0;
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status remove_directory(const std::string& path) = 0;  // must be empty
  // Sorted by name, without "." and "..".
  virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;
  // Of the path itself: a link is not followed (lstat).
  virtual Result<FileInfo> stat(const std::string& path) = 0;
  virtual Result<FileInfo> fstat(FileHandle file) = 0;
};

class PosixFileSystem final : public FileSystem {
 public:
  // kRefused: a file is not read through a link in the last place of its path either, and a pipe is not waited for. For
  // files that are shown to others, in a folder into which others write: a link there could lead to any file that this
  // process may read.
  enum class Links { kFollowed, kRefused };

  PosixFileSystem() = default;
  explicit PosixFileSystem(Links links) : links_(links) {}

  Result<FileHandle> open_for_write(const std::string& path) override;
  Result<FileHandle> open_for_read(const std::string& path) override;
  Result<FileHandle> open_for_append(const std::string& path, Append append) override;
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override;
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override;
  Result<size_t> read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) override;
  Status fsync(FileHandle file) override;
  Status truncate(FileHandle file, uint64_t bytes) override;
  Status close(FileHandle file) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status make_directory(const std::string& path) override;
  Status fsync_directory(const std::string& path) override;
  Status remove_file(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  Result<FileInfo> stat(const std::string& path) override;
  Result<FileInfo> fstat(FileHandle file) override;

 private:
  Links links_ = Links::kFollowed;
};

// Closes an open file at its end, and ignores what close() reports: for files that are read, or written without an
// fsync.
class OpenFile {
 public:
  OpenFile(FileSystem& fs, FileHandle handle) : fs_(&fs), handle_(handle) {}
  OpenFile(OpenFile&& other) noexcept : fs_(other.fs_), handle_(std::exchange(other.handle_, FileHandle{})) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(fs_, other.fs_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~OpenFile() {
    if (handle_.descriptor >= 0) (void)fs_->close(handle_).ok();
  }

  [[nodiscard]] FileSystem& fs() const { return *fs_; }
  [[nodiscard]] FileHandle handle() const { return handle_; }

 private:
  FileSystem* fs_;
  FileHandle handle_;
};

inline constexpr const char* kNoSpace = "NoSpace";

// The Error of a failed system call: "open /x: Read-only file system".
Error error_of_errno(int errno_value, std::string_view call, const std::string& path);

// Takes the bytes of a file in order; serialisers write to it.
using ByteSink = std::function<Status(const void* data, size_t bytes)>;

Status write_all(FileSystem& fs, FileHandle file, const void* data, size_t bytes);

// Creates or replaces `path` with what `produce` sends to its sink, fsyncs and closes it. Not atomic: see
// atomic_file.h.
Status write_file(FileSystem& fs, const std::string& path, const std::function<Status(const ByteSink&)>& produce);

// Sends the whole file to the sink in pieces.
Status read_file(FileSystem& fs, const std::string& path, const ByteSink& sink);
// The whole file. kInvalid when it is larger than bytes_max. on_progress is called after every few megabytes.
Result<std::string> read_file(
    FileSystem& fs, const std::string& path, uint64_t bytes_max, const std::function<void()>& on_progress = [] {});
// `bytes` bytes from a place in the file; fewer where it ends.
Result<std::string> read_part(FileSystem& fs, const std::string& path, uint64_t offset, size_t bytes);

// Like `mkdir -p`; each parent of a new directory is fsynced.
Status make_directories(FileSystem& fs, const std::string& path);

// Removes a file, or a directory with its content. A path that does not exist is no error.
Status remove_tree(FileSystem& fs, const std::string& path);

// "a/b" + "c" = "a/b/c".
std::string join_path(const std::string& folder, std::string_view name);
// "a/b" → "a"; "b" → "."; "/b" → "/".
std::string parent_path(const std::string& path);
// "a/b" and "a/b/" → "b".
std::string base_name(const std::string& path);

}  // namespace lockstep
