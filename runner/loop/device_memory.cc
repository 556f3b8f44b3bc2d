#include "runner/loop/device_memory.h"

#include "runner/telemetry/mfu.h"
#if defined(LOCKSTEP_CUDA)
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace lockstep {

MemoryFigures memory_figures([[maybe_unused]] at::Device device) {
  MemoryFigures figures;
  figures.resident_bytes = resident_memory_bytes();
#if defined(LOCKSTEP_CUDA)
  if (device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    figures.device = MemoryFigures::Device{
        .allocated_bytes = static_cast<double>(stats.allocated_bytes[kAll].current),
        .reserved_bytes = static_cast<double>(stats.reserved_bytes[kAll].current),
        .peak_bytes = static_cast<double>(stats.reserved_bytes[kAll].peak),
        .capacity_bytes = static_cast<double>(at::cuda::getDeviceProperties(device.index())->totalGlobalMem)};
  }
#endif
  return figures;
}

std::optional<double> device_peak_flops([[maybe_unused]] at::Device device, [[maybe_unused]] Precision precision) {
#if defined(LOCKSTEP_CUDA)
  if (device.is_cuda()) return peak_flops_per_second(at::cuda::getDeviceProperties(device.index())->name, precision);
#endif
  return std::nullopt;
}

}  // namespace lockstep
