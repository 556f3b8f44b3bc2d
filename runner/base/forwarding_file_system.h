// ForwardingFileSystem: a FileSystem that forwards every call to another; a base for classes that change some calls.
// Threads: as the file system below, which outlives this one.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"

namespace lockstep {

class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem& below) : below_(below) {}

  Result<FileHandle> open_for_write(const std::string& path) override { return below_.open_for_write(path); }
  Result<FileHandle> open_for_read(const std::string& path) override { return below_.open_for_read(path); }
  Result<FileHandle> open_for_append(const std::string& path, Append append) override {
    return below_.open_for_append(path, append);
  }
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
    return below_.write(file, data, bytes);
  }
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override { return below_.read(file, data, bytes); }
  Result<size_t> read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) override {
    return below_.read_at(file, offset, data, bytes);
  }
  Status fsync(FileHandle file) override { return below_.fsync(file); }
  Status truncate(FileHandle file, uint64_t bytes) override { return below_.truncate(file, bytes); }
  Status close(FileHandle file) override { return below_.close(file); }
  Status rename(const std::string& from, const std::string& to) override { return below_.rename(from, to); }
  Status make_directory(const std::string& path) override { return below_.make_directory(path); }
  Status fsync_directory(const std::string& path) override { return below_.fsync_directory(path); }
  Status remove_file(const std::string& path) override { return below_.remove_file(path); }
  Status remove_directory(const std::string& path) override { return below_.remove_directory(path); }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return below_.list(path); }
  Result<FileInfo> stat(const std::string& path) override { return below_.stat(path); }
  Result<FileInfo> fstat(FileHandle file) override { return below_.fstat(file); }

 private:
  FileSystem& below_;
};

// Calls `answered` after each read, write and fsync, to report that the volume still responds: a slow volume must not
// be taken for a hang. An error that `answered` returns becomes that of the call, so that a long read or write can be
// stopped. Threads: `answered` is called on the thread of the call.
class WatchedFileSystem final : public ForwardingFileSystem {
 public:
  WatchedFileSystem(FileSystem& below, std::function<Status()> answered)
      : ForwardingFileSystem(below), answered_(std::move(answered)) {}

  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
    return answered(ForwardingFileSystem::write(file, data, bytes));
  }
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override {
    return answered(ForwardingFileSystem::read(file, data, bytes));
  }
  Result<size_t> read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) override {
    return answered(ForwardingFileSystem::read_at(file, offset, data, bytes));
  }
  Status fsync(FileHandle file) override { return answered(ForwardingFileSystem::fsync(file)); }

 private:
  template <typename T>
  T answered(T result) const {
    TRY(answered_());
    return result;
  }

  std::function<Status()> answered_;
};

}  // namespace lockstep
