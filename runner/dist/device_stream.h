// DeviceStream: how the host learns what its device has done.
//
// Role: on a GPU a call returns when its work is queued, collectives of NCCL included, and an aborted collective ends
// like any other: what it leaves in memory is garbage, and nothing is thrown. So whoever acts on data of the device
// waits for it here first, and asks then whether the group was cut (wait_for_device in dist/collectives.h). On the CPU
// everything has been done when the call returns. Tests play a device on the CPU
// (tests/runner/support/asynchronous_device.h).
// Threads: the training thread. Errors: a fault of the device is thrown by the wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace lockstep {

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // After so many steps a step's figures can be read without stopping the device; 0 on the CPU.
  [[nodiscard]] virtual int64_t lag() const = 0;
  // Returns when everything that was queued so far has been done.
  virtual void wait() = 0;
  // Queues a copy to the host, and returns at once. The function that comes back waits for that copy and returns it.
  using Reading = std::function<at::Tensor()>;
  [[nodiscard]] virtual Reading read_later(const at::Tensor& tensor) = 0;
};

// The current stream of `device`; device index and type as chosen (loop/device.h).
std::unique_ptr<DeviceStream> make_device_stream(at::Device device);

}  // namespace lockstep
