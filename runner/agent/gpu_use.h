// GpuUseReader: reads the GPUs' utilisation regularly, on a thread of its own. A driver with a problem (a GPU that fell
// off the bus, a reset) may take seconds to answer, or never answer; an agent that waited for it would miss its
// heartbeats, and its node would be declared lost.
// Threads: newest() from any; `read` is called on the reader's own thread. Ownership: the thread is detached and owns
// what it needs; it ends after its present call.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "runner/agent/devices.h"
#include "runner/base/clock.h"

namespace lockstep {

// NVML's figures are averages over about a second, so reading more often gains nothing.
inline constexpr std::chrono::seconds kGpuUseInterval{1};
// Older figures are not shown.
inline constexpr std::chrono::seconds kGpuUseAgeMax{10};

class GpuUseReader {
 public:
  explicit GpuUseReader(std::function<std::vector<GpuUse>()> read,
                        std::chrono::milliseconds interval = kGpuUseInterval);
  ~GpuUseReader();  // does not wait for a call that is under way
  GpuUseReader(const GpuUseReader&) = delete;
  GpuUseReader& operator=(const GpuUseReader&) = delete;

  // Empty before the first answer, and when the newest one is older than kGpuUseAgeMax.
  [[nodiscard]] std::vector<GpuUse> newest(TimePoint now) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace lockstep
