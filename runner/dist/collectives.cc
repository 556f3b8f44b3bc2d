#include "runner/dist/collectives.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "runner/base/check.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/process_group.h"

namespace lockstep {

struct HostSums::Impl {
  at::Tensor figures;
  c10::intrusive_ptr<c10d::Work> work;  // null when solo
};

HostSums::HostSums(ProcessGroup& group, std::span<const double> values) : impl_(std::make_unique<Impl>()) {
  impl_->figures = torch::empty({static_cast<int64_t>(values.size())}, torch::kFloat64);
  std::copy(values.begin(), values.end(), impl_->figures.data_ptr<double>());
  if (group.is_solo()) return;
  std::vector<at::Tensor> tensors{impl_->figures};
  impl_->work = group.handle()->allreduce(tensors);
}

HostSums::~HostSums() = default;
HostSums::HostSums(HostSums&&) noexcept = default;
HostSums& HostSums::operator=(HostSums&&) noexcept = default;

std::vector<double> HostSums::wait() {
  LOCKSTEP_CHECK(impl_ != nullptr, "HostSums::wait is called once");
  if (impl_->work) impl_->work->wait();
  const double* data = impl_->figures.data_ptr<double>();
  std::vector<double> sums(data, data + impl_->figures.numel());
  impl_.reset();
  return sums;
}

std::vector<double> sum_over_ranks(ProcessGroup& group, std::span<const double> values) {
  return HostSums(group, values).wait();
}

std::vector<std::vector<int64_t>> gather_over_ranks(ProcessGroup& group, std::span<const int64_t> values) {
  if (group.is_solo()) return {std::vector<int64_t>(values.begin(), values.end())};
  const auto length = static_cast<int64_t>(values.size());
  std::vector<at::Tensor> mine{torch::tensor(at::ArrayRef<int64_t>(values.data(), values.size()), torch::kInt64)};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int r = 0; r < group.world_size(); ++r) all[0].push_back(torch::empty({length}, torch::kInt64));
  group.handle()->allgather(all, mine)->wait();
  std::vector<std::vector<int64_t>> rows;
  for (const at::Tensor& row : all[0]) {
    rows.emplace_back(row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + length);
  }
  return rows;
}

std::vector<std::string> bytes_to_rank_zero(ProcessGroup& group, std::string mine,
                                            const std::function<void()>& on_progress) {
  const auto my_size = static_cast<int64_t>(mine.size());
  const auto sizes = gather_over_ranks(group, {&my_size, 1});
  const bool keeps = group.rank() == 0;
  std::vector<std::string> all(keeps ? 1 : 0);
  for (int source = 1; source < group.world_size(); ++source) {
    // The tensor owns its memory, because a broadcast that is abandoned at a cut may still write to it.
    at::Tensor bytes = torch::empty({sizes[static_cast<size_t>(source)].front()}, torch::kUInt8);
    char* const data = static_cast<char*>(bytes.mutable_data_ptr());
    if (source == group.rank()) std::copy(mine.begin(), mine.end(), data);
    if (bytes.numel() > 0) broadcast(group, bytes, source);
    if (keeps) all.emplace_back(data, static_cast<size_t>(bytes.numel()));
    on_progress();
  }
  if (keeps) all.front() = std::move(mine);
  return all;
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
