#include "runner/dist/state_transfer.h"

#include <torch/types.h>

#include <bit>

#include "runner/dist/collectives.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/process_group.h"

namespace lockstep {

std::vector<StateClaim> gather_claims(ProcessGroup& group, const StateClaim& mine) {
  const std::vector<int64_t> row{std::bit_cast<int64_t>(mine.lineage), mine.step, mine.evaluated_step,
                                 mine.has_state ? 1 : 0, std::bit_cast<int64_t>(mine.generation)};
  std::vector<StateClaim> claims;
  for (const auto& r : gather_over_ranks(group, row)) {
    claims.push_back({.lineage = std::bit_cast<uint64_t>(r[0]),
                      .step = r[1],
                      .evaluated_step = r[2],
                      .has_state = r[3] != 0,
                      .generation = std::bit_cast<uint64_t>(r[4])});
  }
  return claims;
}

namespace {

// Small tensors are sent together in one message, because each broadcast costs its latency.
constexpr int64_t kMessageBytesMax = int64_t{32} << 20;

// Splits the tensors into messages: consecutive tensors of one dtype and device, at most kMessageBytesMax together. A
// larger tensor is a message of its own.
std::vector<std::vector<size_t>> messages_of(const NamedTensors& tensors) {
  std::vector<std::vector<size_t>> messages;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i].tensor;
    const auto size = static_cast<int64_t>(t.nbytes());
    const bool fits = !messages.empty() && bytes + size <= kMessageBytesMax &&
                      t.scalar_type() == tensors[messages.back().front()].tensor.scalar_type() &&
                      t.device() == tensors[messages.back().front()].tensor.device();
    if (!fits) {
      messages.emplace_back();
      bytes = 0;
    }
    messages.back().push_back(i);
    bytes += size;
  }
  return messages;
}

}  // namespace

void transfer_state(ProcessGroup& group, DeviceStream& device, const NamedTensors& tensors, int source, bool receives,
                    const std::function<void()>& on_progress) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::vector<size_t>> messages = messages_of(tensors);
  std::vector<at::Tensor> staging;
  staging.reserve(messages.size());
  for (const std::vector<size_t>& message : messages) {
    std::vector<at::Tensor> parts;
    for (const size_t i : message) parts.push_back(tensors[i].tensor.detach().reshape({-1}));
    // Every rank makes a copy, because a tensor may be a view that the backend refuses. Only a rank that receives keeps
    // it.
    at::Tensor staged = torch::cat(parts);
    broadcast(group, staged, source);
    // Waits after each message, so that a slow transfer reports progress.
    wait_for_device(group, device);
    if (receives) staging.push_back(std::move(staged));
    on_progress();
  }
  // When a cut reached another rank first, its abort may have ended our broadcasts early. Then this barrier throws.
  barrier(group);
  if (!receives) return;
  for (size_t m = 0; m < messages.size(); ++m) {
    int64_t offset = 0;
    for (const size_t i : messages[m]) {
      const at::Tensor& t = tensors[i].tensor;
      t.copy_(staging[m].narrow(0, offset, t.numel()).view(t.sizes()));
      offset += t.numel();
    }
  }
}

std::vector<int64_t> parameter_checksum(const NamedTensors& parameters) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const NamedTensor& p : parameters) {
    const at::Tensor wide = p.tensor.to(torch::kFloat64);
    sums.push_back(wide.sum());
    sums.push_back(wide.abs().sum());
  }
  const at::Tensor all = torch::stack(sums).cpu();
  std::vector<int64_t> bits(static_cast<size_t>(all.numel()));
  for (int64_t i = 0; i < all.numel(); ++i) {
    bits[static_cast<size_t>(i)] = std::bit_cast<int64_t>(all.data_ptr<double>()[i]);
  }
  return bits;
}

std::vector<int> drifted_ranks(ProcessGroup& group, DeviceStream& device, const NamedTensors& parameters) {
  const std::vector<int64_t> mine = parameter_checksum(parameters);
  // After a cut the parameters may be those of the step before; then this throws.
  wait_for_device(group, device);
  const auto rows = gather_over_ranks(group, mine);
  std::vector<int> drifted;
  for (size_t r = 1; r < rows.size(); ++r) {
    if (rows[r] != rows[0]) drifted.push_back(static_cast<int>(r));
  }
  return drifted;
}

}  // namespace lockstep
