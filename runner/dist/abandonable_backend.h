// AbandonableBackend: a c10d backend whose collectives can be given up by those who wait for them.
//
// Role: a collective of Gloo that is in the middle of a transfer when its connection ends may never end: the buffer of
// a message that is half received, or queued to be sent, is in none of the lists that gloo's Pair::signalException
// goes through, so that its owner waits for the whole collective timeout. A survivor cannot take part in the next
// group while its training thread stands there. So callers wait for a stand-in of each collective: it ends when the
// collective does, or a moment after the group was cut.
// Ownership: holds the inner backend. What was given up keeps its own tensors alive; an inner backend with such
// collectives is destroyed by a thread of its own, because its destructor waits for them.
// Threads: collectives by the training thread. Stand-ins end on the inner backend's threads; those that are given up,
// on one that the abort starts. Errors: a collective that was given up throws c10::DistBackendError.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "runner/dist/group_abort.h"

namespace lockstep {

// Those whose connections end throw within a tenth of a millisecond; who has not by then will not.
inline constexpr std::chrono::milliseconds kAbandonAfter{200};

class AbandonableBackend final : public c10d::Backend {
 public:
  // `abort` may be null: nothing is given up then before the backend is dropped.
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
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;

 private:
  class InFlight;

  [[nodiscard]] c10::intrusive_ptr<c10d::Work> stand_in(c10::intrusive_ptr<c10d::Work> inner) const;

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<InFlight> in_flight_;  // with `abort`, which may outlive the backend
};

}  // namespace lockstep
