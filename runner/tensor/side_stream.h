// SideStream: a stream of a device beside the one that a thread works on, for copies that run beside its kernels.
//
// Threads: the thread that made it, but for what wait() returns. Ownership: borrows a stream from the device's pool.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace lockstep {

class SideStream {
 public:
  // `device` is not the CPU, where nothing is queued.
  explicit SideStream(at::Device device);

  // What `work` queues runs at once, beside what the current stream holds.
  void queue(const std::function<void()>& work);
  // … comes after everything that the current stream holds so far.
  void queue_after_current(const std::function<void()>& work);
  // What the current stream is given from now on comes after what was queued here last. The host does not wait.
  void join();
  // The memory of a tensor that was made here is not given to others before what the current stream holds so far is
  // done, whenever the tensor is dropped.
  void lend_to_current(const at::Tensor& tensor) const;
  // The host's wait for what was queued here last; for any thread, also one that belongs to no device yet.
  [[nodiscard]] std::function<void()> wait() const;

 private:
  c10::impl::VirtualGuardImpl type_;
  c10::Stream own_;
  std::shared_ptr<c10::Event> queued_;  // after what was queued last; null once it was joined
};

}  // namespace lockstep
