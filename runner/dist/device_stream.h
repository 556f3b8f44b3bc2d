// DeviceStream: waiting for the work that is queued on a device.
//
// Role: on a GPU a call returns when its work is queued, also a collective of NCCL. An aborted collective ends like any
// other: it leaves garbage in its buffers and throws nothing. So before the host uses data of the device it must wait
// here and then check whether the group was cut (wait_for_device in dist/collectives.h does both). On the CPU a call
// returns when its work is done. Tests imitate an asynchronous device on the CPU
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

  // The figures of a step can be read so many steps later without making the device wait for the host; 0 on the CPU.
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
