// GpuUseReader: asks the driver for the GPUs' use now and then, on a thread of its own. A driver in trouble (a GPU that
// fell off the bus, a reset) may take seconds to answer, or never does: an agent that waited for it would be taken for
// lost, with its node.
// Threads: newest() from any; `read` is called on the reader's own thread. Ownership: the thread lives as long as its
// call does, and keeps what it needs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "runner/agent/devices.h"

namespace lockstep {

// NVML's own figures are averages over about a second.
inline constexpr std::chrono::seconds kGpuUseInterval{1};
// Figures that are older say nothing of now.
inline constexpr std::chrono::seconds kGpuUseAgeMax{10};

class GpuUseReader {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

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
