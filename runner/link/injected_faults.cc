#include "runner/link/injected_faults.h"

#include <cerrno>
#include <thread>

#include "runner/base/clock.h"

namespace lockstep {
namespace {

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

void InjectedFaults::add(const InjectFault& fault) {
  switch (fault.fault) {
    case Fault::kDiskFull:
      disk_full_until_ns_.store(monotonic_ns() + nanoseconds(fault.seconds));
      return;
    case Fault::kNotFinite:
      not_finite_.store(true);
      return;
    default:
      stall_ns_[static_cast<size_t>(fault.fault)].store(nanoseconds(fault.seconds));
  }
}

bool InjectedFaults::take_not_finite() { return not_finite_.load() && not_finite_.exchange(false); }

void InjectedFaults::stall_here(Fault fault) {
  std::atomic<int64_t>& wanted = stall_ns_[static_cast<size_t>(fault)];
  if (wanted.load(std::memory_order_relaxed) == 0) return;
  std::this_thread::sleep_for(std::chrono::nanoseconds(wanted.exchange(0)));
}

void InjectedFaults::work_here(Fault fault, const std::function<bool()>& goes_on) {
  constexpr std::chrono::milliseconds kPiece{10};
  std::atomic<int64_t>& wanted = stall_ns_[static_cast<size_t>(fault)];
  if (wanted.load(std::memory_order_relaxed) == 0) return;
  const int64_t until = monotonic_ns() + wanted.exchange(0);
  while (goes_on() && monotonic_ns() < until) std::this_thread::sleep_for(kPiece);
}

bool InjectedFaults::disk_is_full() const {
  const int64_t until = disk_full_until_ns_.load(std::memory_order_relaxed);
  return until != 0 && monotonic_ns() < until;
}

Result<FileHandle> FillableFileSystem::open_for_write(const std::string& path) {
  Result<FileHandle> file = ForwardingFileSystem::open_for_write(path);
  faults_.stall_here(Fault::kStallWrite);
  return file;
}

Result<size_t> FillableFileSystem::write(FileHandle file, const void* data, size_t bytes) {
  if (faults_.disk_is_full()) return error_of_errno(ENOSPC, "write", "to the checkpoint volume (injected)");
  return ForwardingFileSystem::write(file, data, bytes);
}

}  // namespace lockstep
