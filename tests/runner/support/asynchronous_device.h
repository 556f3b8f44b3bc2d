// A device that is simulated on the CPU, with its own NCCL: collectives return when they are queued, their data comes
// later on a thread of the device (its stream), and an abort ends them with garbage and without an exception.
//
// What is simulated: a tensor that a collective receives is garbage until the stream has reached the collective.
// Operators of the thread that uses the device are "queued behind" its collectives: each waits for the stream before it
// runs (a dispatch key of torch does that). What reads memory without an operator, or acts on the host, waits for
// nothing, as on a GPU. c10d::Work objects end as those of ProcessGroupNCCL do: at once, or, with
// TORCH_NCCL_BLOCKING_WAIT=1, when the data is there (HostWaits::kForData); futures, which the Reducer takes, end at
// once in both cases, and so does every Work of an aborted device. As with NCCL, values of the host travel over Gloo
// beside it: sums of fp64 and what is gathered.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "runner/dist/device_stream.h"
#include "runner/dist/process_group.h"

namespace lockstep {

enum class HostWaits { kForNothing, kForData };

// The wires between the devices of one group, whose ranks are threads of one process.
class DeviceWires;

class AsynchronousDevice final : public DeviceStream {
 public:
  AsynchronousDevice(std::shared_ptr<DeviceWires> wires, int rank, HostWaits waits);
  ~AsynchronousDevice() override;
  AsynchronousDevice(const AsynchronousDevice&) = delete;
  AsynchronousDevice& operator=(const AsynchronousDevice&) = delete;

  // From now on tensors of `group` travel through this device, whose abort is a part of the group's. It must outlive
  // the group.
  void carry(ProcessGroup& group);
  // While it lives, operators of this thread are queued on the device.
  class [[nodiscard]] InUse {
   public:
    explicit InUse(AsynchronousDevice& device);
    ~InUse();
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    class Guard;
    std::unique_ptr<Guard> guard_;
  };

  // Called by the thread that queues a collective, before it does; the first is number 1.
  void before_launch(std::function<void(int64_t number)> action);
  // Running and later collectives end with garbage.
  void abort();

  // DeviceStream.
  [[nodiscard]] int64_t lag() const override { return 2; }
  void wait() override;
  [[nodiscard]] Reading read_later(const at::Tensor& tensor) override;

 private:
  class Stream;
  class Backend;
  std::shared_ptr<Stream> stream_;
};

// As on_ranks, with a device for each rank.
void on_device_ranks(int world_size, HostWaits waits,
                     const std::function<void(ProcessGroup&, AsynchronousDevice&)>& body);

}  // namespace lockstep
