#include "runner/dist/state_transfer.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <utility>

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

// Reports progress after each message, so that it waits for the device each time.
using AfterMessage = std::function<void()>;

at::Tensor joined(const NamedTensors& tensors, const std::vector<size_t>& message) {
  std::vector<at::Tensor> parts;
  for (const size_t i : message) parts.push_back(tensors[i].tensor.detach().reshape({-1}));
  return torch::cat(parts);
}

at::Tensor room_for(const NamedTensors& tensors, const std::vector<size_t>& message) {
  int64_t numel = 0;
  for (const size_t i : message) numel += tensors[i].tensor.numel();
  return torch::empty({numel}, tensors[message.front()].tensor.options());
}

// Every rank but the source lacks the state.
std::vector<at::Tensor> send_to_all(ProcessGroup& group, const NamedTensors& tensors,
                                    const std::vector<std::vector<size_t>>& messages, int source,
                                    const AfterMessage& after_message) {
  std::vector<at::Tensor> staging;
  for (const std::vector<size_t>& message : messages) {
    // A copy, because a tensor may be a view that the backend refuses.
    at::Tensor staged = joined(tensors, message);
    broadcast(group, staged, source);
    if (group.rank() != source) staging.push_back(std::move(staged));
    after_message();
  }
  return staging;
}

// Only some ranks lack the state. It goes from the source to the first of them, from there to the next and so on; each
// passes a message on while it receives the next one, so many receivers take hardly longer than one. The other ranks
// exchange no data.
std::vector<at::Tensor> send_along(const std::vector<int>& chain, ProcessGroup& group, const NamedTensors& tensors,
                                   const std::vector<std::vector<size_t>>& messages,
                                   const AfterMessage& after_message) {
  const auto count = std::ssize(messages);
  const auto place = std::find(chain.begin(), chain.end(), group.rank()) - chain.begin();
  const bool takes_part = place < std::ssize(chain);
  std::vector<at::Tensor> staging;
  const auto rounds = count + std::ssize(chain) - 2;
  for (std::ptrdiff_t round = 0; round < rounds; ++round) {
    // In each round message m is at place `round - m` of the chain, and goes to the next place.
    const auto out = round - place;
    const auto in = out + 1;
    const bool sends = takes_part && place + 1 < std::ssize(chain) && out >= 0 && out < count;
    const bool receives = takes_part && place > 0 && in >= 0 && in < count;
    std::vector<int64_t> to(static_cast<size_t>(group.world_size()), 0);
    std::vector<int64_t> from(to);
    at::Tensor sent;
    if (sends) {
      const auto m = static_cast<size_t>(out);
      sent = place == 0 ? joined(tensors, messages[m]) : staging[m];
    }
    at::Tensor received;
    if (receives) received = room_for(tensors, messages[static_cast<size_t>(in)]);
    // Bytes, because the messages of one round may have several dtypes. A rank without a message exchanges none.
    const auto bytes = [&](const at::Tensor& t) {
      return t.defined() ? t.view(torch::kUInt8)
                         : torch::empty({0}, tensors.front().tensor.options().dtype(torch::kUInt8));
    };
    at::Tensor sent_bytes = bytes(sent);
    at::Tensor received_bytes = bytes(received);
    if (sends) to[static_cast<size_t>(chain[static_cast<size_t>(place + 1)])] = sent_bytes.numel();
    if (receives) from[static_cast<size_t>(chain[static_cast<size_t>(place - 1)])] = received_bytes.numel();
    exchange_chunks(group, received_bytes, std::move(from), sent_bytes, std::move(to));
    if (receives) staging.push_back(std::move(received));
    after_message();
  }
  return staging;
}

}  // namespace

void transfer_state(ProcessGroup& group, DeviceStream& device, const NamedTensors& tensors, int source,
                    const std::vector<bool>& receives, const std::function<void()>& on_progress) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::vector<size_t>> messages = messages_of(tensors);
  std::vector<int> chain{source};
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (receives[static_cast<size_t>(rank)]) chain.push_back(rank);
  }
  const AfterMessage after_message = [&] {
    wait_for_device(group, device);
    on_progress();
  };
  const std::vector<at::Tensor> staging = std::ssize(chain) == group.world_size()
                                              ? send_to_all(group, tensors, messages, source, after_message)
                                              : send_along(chain, group, tensors, messages, after_message);
  // When a cut reached another rank first, its abort may have ended our broadcasts early. Then this barrier throws.
  barrier(group);
  if (!receives[static_cast<size_t>(group.rank())]) return;
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
