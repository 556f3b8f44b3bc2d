#include "runner/models/sasrec/item_memory.h"

#include <array>
#include <cstdio>

#include "runner/base/cgroup.h"
#include "runner/models/sasrec/sasrec_evaluation.h"
#if defined(LOCKSTEP_CUDA)
#include <ATen/cuda/CUDAContext.h>
#endif

namespace lockstep {
namespace {

constexpr double kBytesPerNumber = 4.0;  // fp32, also with --use_amp

std::string bytes_text(double bytes) {
  constexpr double kKibi = 1024.0;
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  double value = bytes / kKibi;
  size_t unit = 0;
  for (; value >= kKibi && unit + 1 < kUnits.size(); ++unit) value /= kKibi;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 10 ? "%.1f %s" : "%.0f %s", value, kUnits.at(unit));
  return text.data();
}

}  // namespace

Result<std::string> item_memory_text(const ItemMemory& memory) {
  const double rows = static_cast<double>(memory.num_items) + 1.0;  // row 0 is padding
  const double table = rows * static_cast<double>(memory.hidden_units) * kBytesPerNumber;
  // Weights, gradients, two moments; the moving averages.
  const double copies = 4.0 + static_cast<double>(memory.averages);
  const double scores = rows * static_cast<double>(kUsersPerChunk) * kBytesPerNumber;
  const double needed = static_cast<double>(memory.ranks) * (table * copies + scores);
  const double available = static_cast<double>(memory.available_bytes);
  const std::string ranks = memory.ranks > 1 ? std::to_string(memory.ranks) + " ranks: " : "";
  const std::string text = bytes_text(needed) + " of " + bytes_text(available) + " (" + ranks + "embedding " +
                           bytes_text(table) + " x " + std::to_string(4 + memory.averages) + ", scores " +
                           bytes_text(scores) + ")";
  if (needed <= available) return text;
  return Error{ErrorCode::kInvalid,
               std::to_string(memory.num_items) + " items at --hidden_units " + std::to_string(memory.hidden_units) +
                   " do not fit into memory: they need " + text + ": training also keeps the embedding's gradients, " +
                   (memory.averages > 0 ? "its moving averages " : "") +
                   "and Adam's two moments. Give fewer --hidden_units" + (memory.ranks > 1 ? ", fewer ranks" : "") +
                   (memory.keeps_ids ? ", or a file without gaps between its ids: ids of `user item` files are kept, "
                                       "and they go up to " +
                                           std::to_string(memory.num_items) + ": number them 1, 2, 3 …"
                                     : ", or a larger --min_count, which drops rare items")};
}

int64_t memory_of([[maybe_unused]] at::Device device) {
#if defined(LOCKSTEP_CUDA)
  if (device.is_cuda()) return static_cast<int64_t>(at::cuda::getDeviceProperties(device.index())->totalGlobalMem);
#endif
  return usable_memory_bytes();
}

}  // namespace lockstep
