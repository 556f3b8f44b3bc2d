#include "runner/tensor/side_stream.h"

#include <c10/core/StreamGuard.h>

#include <utility>

namespace lockstep {

SideStream::SideStream(at::Device device) : type_(device.type()), own_(type_.getStreamFromGlobalPool(device)) {}

void SideStream::queue(const std::function<void()>& work) {
  const c10::StreamGuard guard(own_);
  work();
  queued_ = std::make_shared<c10::Event>(own_.device_type());
  queued_->record(own_);
}

void SideStream::queue_after_current(const std::function<void()>& work) {
  c10::Event so_far(own_.device_type());
  so_far.record(type_.getStream(own_.device()));
  so_far.block(own_);
  queue(work);
}

void SideStream::join() {
  if (queued_) std::exchange(queued_, nullptr)->block(type_.getStream(own_.device()));
}

void SideStream::lend_to_current(const at::Tensor& tensor) const {
  type_.recordDataPtrOnStream(tensor.storage().data_ptr(), type_.getStream(own_.device()));
}

std::function<void()> SideStream::wait() const {
  return [type = type_, device = own_.device(), queued = queued_] {
    type.setDevice(device);
    queued->synchronize();
  };
}

}  // namespace lockstep
