// InjectedFaults: faults shown on purpose (lockstep chaos, tests), and the places where they show.
//
// Role: the agent's word (messages.h, InjectFault) comes on the link's thread; the training loop and the file layer
// ask here. Without a word everything is a load of one atomic.
// Threads: add() from any thread; the rest as said.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "runner/base/file_system.h"
#include "runner/contract/messages.h"

namespace lockstep {

class InjectedFaults {
 public:
  void add(const InjectFault& fault);

  // Training thread. True once per injected kNotFinite.
  bool take_not_finite();
  // One thread per fault: stops here for as long as was said, when `fault` was injected. As deaf as a real hang.
  void stall_here(Fault fault);
  // Any thread.
  [[nodiscard]] bool disk_is_full() const;

 private:
  std::atomic<bool> not_finite_{false};
  std::array<std::atomic<int64_t>, kFaultCount> stall_ns_{};  // by fault
  std::atomic<int64_t> disk_full_until_ns_{0};                // CLOCK_MONOTONIC
};

// A file system whose writes answer ENOSPC, or stop, while the fault lasts. Both arguments outlive it.
class FillableFileSystem final : public FileSystem {
 public:
  FillableFileSystem(FileSystem& below, InjectedFaults& faults) : below_(below), faults_(faults) {}

  Result<FileHandle> open_for_write(const std::string& path) override { return below_.open_for_write(path); }
  Result<FileHandle> open_for_read(const std::string& path) override { return below_.open_for_read(path); }
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override;
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override { return below_.read(file, data, bytes); }
  Status fsync(FileHandle file) override { return below_.fsync(file); }
  Status close(FileHandle file) override { return below_.close(file); }
  Status rename(const std::string& from, const std::string& to) override { return below_.rename(from, to); }
  Status make_directory(const std::string& path) override { return below_.make_directory(path); }
  Status fsync_directory(const std::string& path) override { return below_.fsync_directory(path); }
  Status remove_file(const std::string& path) override { return below_.remove_file(path); }
  Status remove_directory(const std::string& path) override { return below_.remove_directory(path); }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return below_.list(path); }
  Result<FileInfo> stat(const std::string& path) override { return below_.stat(path); }

 private:
  FileSystem& below_;
  InjectedFaults& faults_;
};

}  // namespace lockstep
