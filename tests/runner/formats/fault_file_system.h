// A FileSystem whose n-th call fails, dies or writes short, over the real one. Threads: changing calls from any thread,
// one after the other; what is asked of it, when they are over.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/forwarding_file_system.h"

namespace lockstep {

// Thrown in place of the call at which a process died.
struct Died {};

class FaultFileSystem final : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kDie,          // before the call; the calls after it do nothing
    kDieAfter,     // the call is made (a write: half of it), then death
    kFailOnce,     // errno_value, once
    kFailForever,  // errno_value for every changing call from the n-th on, as a full or read-only volume answers
  };

  FaultFileSystem(FileSystem& below, Fault fault, int at_call, int errno_value = 0)
      : below_(below), fault_(fault), at_call_(at_call), errno_value_(errno_value) {}

  // Changing calls so far; reading ones are not counted.
  [[nodiscard]] int calls() const { return calls_; }
  [[nodiscard]] int failures() const { return failures_; }
  [[nodiscard]] const std::vector<std::string>& log() const { return log_; }
  void write_short(size_t bytes_max) { write_bytes_max_ = bytes_max; }
  // Files whose path ends so cannot be opened for reading, nor a folder listed, as a volume answers that has lost its
  // server.
  void hold_back(std::string ending) { held_back_ = std::move(ending); }

  Result<FileHandle> open_for_write(const std::string& path) override {
    const Result<FileHandle> file =
        change<Result<FileHandle>>("open", path, [&] { return below_.open_for_write(path); });
    const std::lock_guard lock(mutex_);
    if (file.ok()) written_.insert(file->descriptor);
    return file;
  }
  Result<FileHandle> open_for_append(const std::string& path, Append append) override {
    return change<Result<FileHandle>>("open", path, [&] { return below_.open_for_append(path, append); });
  }
  // Called once, when a file whose path ends so is opened for reading the n-th time: what another process does then.
  void at_read_of(std::string ending, int n, std::function<void()> what) {
    meanwhile_ = {std::move(ending), n, std::move(what)};
  }
  Result<FileHandle> open_for_read(const std::string& path) override {
    if (meanwhile_.left > 0 && path.ends_with(meanwhile_.ending) && --meanwhile_.left == 0) meanwhile_.what();
    if (!held_back_.empty() && path.ends_with(held_back_)) {
      return Error{ErrorCode::kUnavailable, "open " + path + ": Input/output error"};
    }
    return below_.open_for_read(path);
  }
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
    bytes = std::min(bytes, write_bytes_max_);
    const bool is_torn = fault_ == Fault::kDieAfter && calls_ + 1 == at_call_;
    return change<Result<size_t>>("write", "", [&] { return below_.write(file, data, is_torn ? bytes / 2 : bytes); });
  }
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override { return below_.read(file, data, bytes); }
  Result<size_t> read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) override {
    return below_.read_at(file, offset, data, bytes);
  }
  Status fsync(FileHandle file) override {
    return change<Status>("fsync", "", [&] { return below_.fsync(file); });
  }
  Status truncate(FileHandle file, uint64_t bytes) override {
    return change<Status>("truncate", "", [&] { return below_.truncate(file, bytes); });
  }
  Status close(FileHandle file) override {
    const bool is_written = was_written(file);  // asked first: once it is closed, another thread may get its number
    // The descriptor is given back even where the call is said to fail, as the kernel does.
    const Status closed = below_.close(file);
    if (!is_written) return closed;
    return change<Status>("close", "", [&] { return closed; });
  }
  Status rename(const std::string& from, const std::string& to) override {
    return change<Status>("rename", to, [&] { return below_.rename(from, to); });
  }
  Status make_directory(const std::string& path) override {
    return change<Status>("mkdir", path, [&] { return below_.make_directory(path); });
  }
  Status fsync_directory(const std::string& path) override {
    return change<Status>("fsync_directory", path, [&] { return below_.fsync_directory(path); });
  }
  Status remove_file(const std::string& path) override {
    return change<Status>("unlink", path, [&] { return below_.remove_file(path); });
  }
  Status remove_directory(const std::string& path) override {
    return change<Status>("rmdir", path, [&] { return below_.remove_directory(path); });
  }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (!held_back_.empty() && path.ends_with(held_back_)) {
      return Error{ErrorCode::kUnavailable, "list " + path + ": Input/output error"};
    }
    return below_.list(path);
  }
  Result<FileInfo> stat(const std::string& path) override { return below_.stat(path); }
  Result<FileInfo> fstat(FileHandle file) override { return below_.fstat(file); }

 private:
  bool was_written(FileHandle file) {
    const std::lock_guard lock(mutex_);
    return written_.erase(file.descriptor) > 0;
  }

  template <typename R, typename Call>
  R change(const std::string& name, const std::string& path, Call call) {
    const std::lock_guard lock(mutex_);
    ++calls_;
    if (dead_) return error_of_errno(EIO, name, path);
    log_.push_back(path.empty() ? name : name + " " + base_name(path));
    if (fault_ == Fault::kDie && calls_ == at_call_) {
      dead_ = true;
      throw Died{};
    }
    if (fault_ == Fault::kDieAfter && calls_ == at_call_) {
      (void)call().ok();
      dead_ = true;
      throw Died{};
    }
    const bool removes = name == "unlink" || name == "rmdir" || name == "close";
    const bool fails = (fault_ == Fault::kFailOnce && calls_ == at_call_) ||
                       (fault_ == Fault::kFailForever && calls_ >= at_call_ && !(removes && errno_value_ == ENOSPC));
    failures_ += fails ? 1 : 0;
    if (fails) return error_of_errno(errno_value_, name, path);
    return call();
  }

  FileSystem& below_;
  std::mutex mutex_;
  Fault fault_;
  int at_call_;
  int errno_value_;
  int calls_ = 0;
  int failures_ = 0;
  bool dead_ = false;
  size_t write_bytes_max_ = static_cast<size_t>(-1);
  std::string held_back_;
  struct Meanwhile {
    std::string ending;
    int left = 0;
    std::function<void()> what;
  } meanwhile_;
  std::vector<std::string> log_;
  std::set<int> written_;  // descriptors open for writing
};

// A volume with room for `bytes_max` bytes in the files of `root`.
class SmallVolume final : public ForwardingFileSystem {
 public:
  SmallVolume(FileSystem& below, std::string root, uint64_t bytes_max)
      : ForwardingFileSystem(below), root_(std::move(root)), bytes_max_(bytes_max) {}
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
    if (bytes_in(root_) + bytes > bytes_max_) return error_of_errno(errno_value, "write", root_);
    return ForwardingFileSystem::write(file, data, bytes);
  }
  static uint64_t bytes_in(const std::string& root) {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    return bytes;
  }

  int errno_value = ENOSPC;

 private:
  std::string root_;
  uint64_t bytes_max_;
};

// Files can be opened, and reading one fails after its first bytes, as on a volume that loses its server meanwhile.
class LostWhileReading final : public ForwardingFileSystem {
 public:
  LostWhileReading(FileSystem& below, size_t bytes_left) : ForwardingFileSystem(below), bytes_left_(bytes_left) {}
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override {
    if (bytes_left_ == 0) return lost();
    return counted(ForwardingFileSystem::read(file, data, std::min(bytes, bytes_left_)));
  }
  Result<size_t> read_at(FileHandle file, uint64_t offset, void* data, size_t bytes) override {
    if (bytes_left_ == 0) return lost();
    return counted(ForwardingFileSystem::read_at(file, offset, data, std::min(bytes, bytes_left_)));
  }

 private:
  static Error lost() { return error_of_errno(EIO, "read", "file descriptor 5"); }
  Result<size_t> counted(Result<size_t> got) {
    if (got.ok()) bytes_left_ -= *got;
    return got;
  }

  size_t bytes_left_;
};

// Lets `writes_left` files be opened for writing; then the disk is full.
class FillingDisk final : public ForwardingFileSystem {
 public:
  FillingDisk(FileSystem& under, int writes_left) : ForwardingFileSystem(under), writes_left_(writes_left) {}
  Result<FileHandle> open_for_write(const std::string& path) override {
    if (writes_left_.fetch_sub(1) <= 0) return error_of_errno(ENOSPC, "open", path);
    return ForwardingFileSystem::open_for_write(path);
  }

 private:
  std::atomic<int> writes_left_;
};

}  // namespace lockstep
