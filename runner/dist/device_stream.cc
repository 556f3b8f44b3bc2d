#include "runner/dist/device_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

namespace lockstep {
namespace {

class HostStream final : public DeviceStream {
 public:
  [[nodiscard]] int64_t lag() const override { return 0; }
  void wait() override {}
  [[nodiscard]] Reading read_later(const at::Tensor& tensor) override {
    return [tensor] { return tensor; };
  }
};

class AcceleratorStream final : public DeviceStream {
 public:
  explicit AcceleratorStream(at::Device device) : device_(device), type_(device.type()) {}

  [[nodiscard]] int64_t lag() const override { return 2; }
  void wait() override { type_.synchronizeStream(type_.getStream(device_)); }
  [[nodiscard]] Reading read_later(const at::Tensor& tensor) override {
    at::Tensor host = torch::empty(tensor.sizes(), tensor.options().device(torch::kCPU).pinned_memory(true));
    host.copy_(tensor, /*non_blocking=*/true);
    const auto copied = std::make_shared<c10::Event>(device_.type());
    copied->record(type_.getStream(device_));
    return [host, copied] {
      copied->synchronize();
      return host;
    };
  }

 private:
  at::Device device_;
  c10::impl::VirtualGuardImpl type_;
};

}  // namespace

std::unique_ptr<DeviceStream> make_device_stream(at::Device device) {
  if (device.is_cpu()) return std::make_unique<HostStream>();
  return std::make_unique<AcceleratorStream>(device);
}

}  // namespace lockstep
