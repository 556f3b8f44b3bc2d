#include "runner/agent/gpu_use.h"

#include <thread>
#include <utility>

#include "runner/base/mutex.h"

namespace lockstep {

struct GpuUseReader::Shared {
  std::function<std::vector<GpuUse>()> read;
  std::chrono::milliseconds interval;
  mutable Mutex mutex;
  ConditionVariable stopped;
  bool is_stopped GUARDED_BY(mutex) = false;
  std::vector<GpuUse> newest GUARDED_BY(mutex);
  TimePoint read_at GUARDED_BY(mutex){};
};

GpuUseReader::GpuUseReader(std::function<std::vector<GpuUse>()> read, std::chrono::milliseconds interval)
    : shared_(std::make_shared<Shared>()) {
  shared_->read = std::move(read);
  shared_->interval = interval;
  std::thread([shared = shared_] {
    for (;;) {
      std::vector<GpuUse> use = shared->read();
      MutexLock lock(shared->mutex);
      shared->newest = std::move(use);
      shared->read_at = std::chrono::steady_clock::now();
      if (shared->stopped.wait_for(lock, shared->interval,
                                   [&]() REQUIRES(shared->mutex) { return shared->is_stopped; }))
        return;
    }
  }).detach();
}

GpuUseReader::~GpuUseReader() {
  const MutexLock lock(shared_->mutex);
  shared_->is_stopped = true;
  shared_->stopped.notify_all();
}

std::vector<GpuUse> GpuUseReader::newest(TimePoint now) const {
  const MutexLock lock(shared_->mutex);
  if (now - shared_->read_at > kGpuUseAgeMax) return {};
  return shared_->newest;
}

}  // namespace lockstep
