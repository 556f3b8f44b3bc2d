#include "runner/agent/gpu_use.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep {

struct GpuUseReader::Shared {
  std::function<std::vector<GpuUse>()> read;
  std::chrono::milliseconds interval;
  mutable std::mutex mutex;
  std::condition_variable stopped;
  bool is_stopped = false;
  std::vector<GpuUse> newest;
  TimePoint read_at{};
};

GpuUseReader::GpuUseReader(std::function<std::vector<GpuUse>()> read, std::chrono::milliseconds interval)
    : shared_(std::make_shared<Shared>()) {
  shared_->read = std::move(read);
  shared_->interval = interval;
  std::thread([shared = shared_] {
    for (;;) {
      std::vector<GpuUse> use = shared->read();
      std::unique_lock lock(shared->mutex);
      shared->newest = std::move(use);
      shared->read_at = std::chrono::steady_clock::now();
      if (shared->stopped.wait_for(lock, shared->interval, [&] { return shared->is_stopped; })) return;
    }
  }).detach();
}

GpuUseReader::~GpuUseReader() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_stopped = true;
  shared_->stopped.notify_all();
}

std::vector<GpuUse> GpuUseReader::newest(TimePoint now) const {
  const std::lock_guard lock(shared_->mutex);
  if (now - shared_->read_at > kGpuUseAgeMax) return {};
  return shared_->newest;
}

}  // namespace lockstep
