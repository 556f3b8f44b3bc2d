// InjectedFaults: faults that are provoked on purpose (lockstep chaos, tests), and the places where they take effect.
//
// Role: the agent's InjectFault (messages.h) arrives on the link's thread; the training loop and the file layer ask
// here at each place. Where nothing was injected, asking costs one atomic load.
// Threads: add() from any thread; the other functions as noted at each.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

#include "runner/base/forwarding_file_system.h"
#include "runner/contract/messages.h"

namespace lockstep {

class InjectedFaults {
 public:
  void add(const InjectFault& fault);

  // Training thread. True once per injected kNotFinite.
  bool take_not_finite();
  // One thread per fault. When `fault` was injected: sleeps for its seconds and, like a real hang, reacts to nothing.
  void stall_here(Fault fault);
  // When `fault` was injected: waits for its seconds, polling `goes_on`, and returns early when that is false.
  void work_here(Fault fault, const std::function<bool()>& goes_on);
  // Any thread.
  [[nodiscard]] bool disk_is_full() const;

 private:
  std::atomic<bool> not_finite_{false};
  std::array<std::atomic<int64_t>, kFaultCount> stall_ns_{};  // by fault
  std::atomic<int64_t> disk_full_until_ns_{0};                // CLOCK_MONOTONIC
};

// A file system whose writes fail with ENOSPC while the fault lasts, or that blocks when it has made a file. (Lines
// that are appended to a file, such as the run's metrics, do not block.) Both arguments outlive it.
class FillableFileSystem final : public ForwardingFileSystem {
 public:
  FillableFileSystem(FileSystem& below, InjectedFaults& faults) : ForwardingFileSystem(below), faults_(faults) {}

  Result<FileHandle> open_for_write(const std::string& path) override;
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override;

 private:
  InjectedFaults& faults_;
};

}  // namespace lockstep
