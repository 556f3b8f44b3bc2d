#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "runner/dist/backends.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupOptions& options) {
  using c10d::ProcessGroupNCCL;
  auto nccl_options = ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  nccl_options->is_high_priority_stream = true;  // a bucket's all-reduce must not queue behind the backward's kernels
  auto nccl = c10::make_intrusive<ProcessGroupNCCL>(store, options.world.rank, options.world.world_size, nccl_options);
  // Of a communicator that stands. While it connects there is none to abort: then its sockets fail (GroupAbort).
  if (options.abort) options.abort->also([nccl] { nccl->abort(); });
  if (options.abort && options.abort->fired()) throw std::runtime_error("the group was cut while it formed");
  // Eager: a device or network that cannot work is found at forming, where it can be named, not in the first step.
  nccl->eagerConnectSingleDevice(options.device);
  return nccl;
}

}  // namespace lockstep
