#include "runner/dist/collectives.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "runner/base/check.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/process_group.h"

namespace lockstep {
namespace {

// The values of all ranks, W rows in rank order. Every rank sends its row to each other rank directly: one hop, where
// Gloo's all-reduce and all-gather are rings of W - 1 or 2 (W - 1) hops one after the other.
struct Exchange {
  Exchange(ProcessGroup& group, const at::Tensor& mine) : sent(mine.repeat({group.world_size(), 1})) {
    all = torch::empty_like(sent);
    std::vector<int64_t> equal_chunks;
    work = group.handle()->alltoall_base(all, sent, equal_chunks, equal_chunks);
  }

  at::Tensor sent;  // kept until the work has ended
  at::Tensor all;
  c10::intrusive_ptr<c10d::Work> work;
};

template <typename T>
at::Tensor row_of(std::span<const T> values) {
  return torch::tensor(at::ArrayRef<T>(values.data(), values.size()), c10::CppTypeToScalarType<T>::value);
}

}  // namespace

struct HostSums::Impl {
  std::vector<double> mine;
  std::optional<Exchange> exchange;  // nullopt when solo
};

HostSums::HostSums(ProcessGroup& group, std::span<const double> values) : impl_(std::make_unique<Impl>()) {
  impl_->mine.assign(values.begin(), values.end());
  if (!group.is_solo()) impl_->exchange.emplace(group, row_of(values));
}

HostSums::~HostSums() = default;
HostSums::HostSums(HostSums&&) noexcept = default;
HostSums& HostSums::operator=(HostSums&&) noexcept = default;

std::vector<double> HostSums::wait() {
  LOCKSTEP_CHECK(impl_ != nullptr, "HostSums::wait is called once");
  const std::unique_ptr<Impl> impl = std::move(impl_);
  if (!impl->exchange) return std::move(impl->mine);
  impl->exchange->work->wait();
  std::vector<double> sums(impl->mine.size(), 0.0);
  const double* next = impl->exchange->all.data_ptr<double>();
  for (int64_t rank = 0; rank < impl->exchange->all.size(0); ++rank) {
    for (double& sum : sums) sum += *next++;
  }
  return sums;
}

std::vector<double> sum_over_ranks(ProcessGroup& group, std::span<const double> values) {
  return HostSums(group, values).wait();
}

std::vector<std::vector<int64_t>> gather_over_ranks(ProcessGroup& group, std::span<const int64_t> values) {
  if (group.is_solo()) return {std::vector<int64_t>(values.begin(), values.end())};
  Exchange exchange(group, row_of(values));
  exchange.work->wait();
  std::vector<std::vector<int64_t>> rows;
  for (int r = 0; r < group.world_size(); ++r) {
    const int64_t* const row = exchange.all.data_ptr<int64_t>() + r * std::ssize(values);
    rows.emplace_back(row, row + values.size());
  }
  return rows;
}

std::vector<std::string> bytes_to_rank_zero(ProcessGroup& group, std::string mine,
                                            const std::function<void()>& on_progress) {
  constexpr int64_t kPieceBytesMax = int64_t{1} << 20;  // of each rank, between two calls of on_progress
  const int64_t my_size = std::ssize(mine);
  const auto sizes = gather_over_ranks(group, {&my_size, 1});
  const bool keeps = group.rank() == 0;
  std::vector<std::string> all(keeps ? sizes.size() : 0);
  int64_t longest = 0;
  for (size_t r = 1; r < sizes.size(); ++r) longest = std::max(longest, sizes[r].front());
  for (int64_t begin = 0; begin < longest; begin += kPieceBytesMax) {
    const auto piece_of = [&](int64_t size) { return std::clamp(size - begin, int64_t{0}, kPieceBytesMax); };
    std::vector<int64_t> sends(sizes.size(), 0);
    std::vector<int64_t> receives(sizes.size(), 0);
    if (!keeps) sends[0] = piece_of(my_size);
    for (size_t r = 1; keeps && r < sizes.size(); ++r) receives[r] = piece_of(sizes[r].front());
    // The tensors own their memory, because a transfer that is abandoned at a cut may still use it.
    at::Tensor sent = torch::empty({sends[0]}, torch::kUInt8);
    if (sends[0] > 0) std::memcpy(sent.mutable_data_ptr(), mine.data() + begin, static_cast<size_t>(sends[0]));
    at::Tensor received = torch::empty({std::accumulate(receives.begin(), receives.end(), int64_t{0})}, torch::kUInt8);
    exchange_chunks(group, received, receives, sent, sends);
    const char* next = static_cast<const char*>(received.const_data_ptr());
    for (size_t r = 1; keeps && r < sizes.size(); next += receives[r++]) {
      all[r].append(next, static_cast<size_t>(receives[r]));
    }
    on_progress();
  }
  if (keeps) all.front() = std::move(mine);
  return all;
}

void exchange_chunks(ProcessGroup& group, at::Tensor& received, std::vector<int64_t> receives, at::Tensor& sent,
                     std::vector<int64_t> sends) {
  group.handle()->alltoall_base(received, sent, receives, sends)->wait();
}

void broadcast(ProcessGroup& group, at::Tensor& tensor, int source) {
  if (group.is_solo()) return;
  c10d::BroadcastOptions options;
  options.rootRank = source;
  std::vector<at::Tensor> tensors{tensor};
  group.handle()->broadcast(tensors, options)->wait();
}

void barrier(ProcessGroup& group) {
  const double zero = 0.0;
  sum_over_ranks(group, {&zero, 1});
}

void refuse_when_cut(const ProcessGroup& group) {
  const auto& abort = group.options().abort;
  TORCH_CHECK_WITH(DistBackendError, !abort || !abort->fired(),
                   "the group was cut: what this device has received since is discarded");
}

void wait_for_device(const ProcessGroup& group, DeviceStream& device) {
  device.wait();
  refuse_when_cut(group);
}

void wait_for_all_devices(ProcessGroup& group, DeviceStream& device) {
  wait_for_device(group, device);
  barrier(group);
}

}  // namespace lockstep
