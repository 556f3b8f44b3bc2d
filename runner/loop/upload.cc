#include "runner/loop/upload.h"

#include <utility>

namespace lockstep {

Upload::Upload(const Workload& workload, at::Device device) : workload_(workload), device_(device) {
  if (!device.is_cpu()) copies_.emplace(device);
}

void Upload::begin(const HostBatch& batch, const BatchShare& share) {
  begun_ = DeviceBatch{.share = share, .tensors = {}};
  const auto copy = [&] { begun_->tensors = workload_.upload(batch, device_); };
  if (copies_) {
    copies_->queue(copy);
  } else {
    copy();
  }
}

DeviceBatch Upload::take(const HostBatch& batch, const BatchShare& share) {
  if (!begun_ || begun_->share != share) begin(batch, share);
  if (copies_) {
    copies_->join();
    for (const NamedTensor& entry : begun_->tensors) copies_->lend_to_current(entry.tensor);
  }
  DeviceBatch taken = std::move(*begun_);
  begun_.reset();
  return taken;
}

}  // namespace lockstep
