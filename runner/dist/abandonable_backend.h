// AbandonableBackend: wraps a c10d backend so that waiting for a collective ends even when the collective hangs.
//
// Role: a Gloo collective whose connection ends in the middle of a transfer may never end: the buffer of a message that
// is half received, or queued to be sent, is in none of the lists that gloo's Pair::signalException goes through, so
// its owner waits for the whole collective timeout. Until then the training thread could not join the next group. So
// callers wait for a StandIn of each collective: it ends when the collective does, or kAbandonAfter after a cut.
// Ownership: owns the inner backend. An abandoned collective keeps its tensors alive. An inner backend with such
// collectives is destroyed on a thread of its own, because its destructor waits for them.
// Threads: collectives are called by the training thread. A StandIn ends on a thread of the inner backend, or, if it is
// abandoned, on one that the abort starts. Errors: an abandoned collective throws c10::DistBackendError.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "runner/link/group_abort.h"

namespace lockstep {

// After a cut a collective throws within 0.1 ms. One that has not thrown after this time is taken to hang for ever.
inline constexpr std::chrono::milliseconds kAbandonAfter{200};

class AbandonableBackend final : public c10d::Backend {
 public:
  // `abort` may be null: then no collective is abandoned before the backend is dropped.
  AbandonableBackend(c10::intrusive_ptr<c10d::Backend> inner, const std::shared_ptr<GroupAbort>& abort);
  ~AbandonableBackend() override;
  AbandonableBackend(const AbandonableBackend&) = delete;
  AbandonableBackend& operator=(const AbandonableBackend&) = delete;

  [[nodiscard]] const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_counts, std::vector<int64_t>& input_counts,
                                               const c10d::AllToAllOptions& options) override;

 private:
  class InFlight;

  [[nodiscard]] c10::intrusive_ptr<c10d::Work> stand_in(c10::intrusive_ptr<c10d::Work> inner) const;

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<InFlight> in_flight_;  // shared with an action of `abort`, which may outlive the backend
};

}  // namespace lockstep
