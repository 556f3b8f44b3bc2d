// SideStream: a second stream of a device, for copies that run while the current stream computes.
//
// Threads: the thread that made it; what wait() returns may be called on any. Ownership: borrows a stream from the
// device's pool.
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

  // Runs `work` with this stream as the current one: what it queues does not wait for the thread's current stream.
  void queue(const std::function<void()>& work);
  // The same, but what `work` queues starts only after everything that the current stream holds so far.
  void queue_after_current(const std::function<void()>& work);
  // Makes the current stream wait for what was queued here last. The host does not wait.
  void join();
  // For a tensor that was made on this stream and is used on the current one (Tensor::record_stream): when the tensor
  // is dropped, its memory is not reused before the current stream has finished what it holds then.
  void lend_to_current(const at::Tensor& tensor) const;
  // A function that blocks its caller until what was queued here last has been done. It may be called on any thread,
  // also on one without a current device.
  [[nodiscard]] std::function<void()> wait() const;

 private:
  c10::impl::VirtualGuardImpl type_;
  c10::Stream own_;
  std::shared_ptr<c10::Event> queued_;  // recorded after what was queued last; null after join()
};

}  // namespace lockstep
