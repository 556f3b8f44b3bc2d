#define USE_C10D_NCCL 1
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "runner/dist/backends.h"
#include "runner/dist/fault.h"
#include "runner/dist/two_phase_abort.h"

namespace lockstep {
namespace {

using c10d::ProcessGroupNCCL;
using Milliseconds = std::chrono::milliseconds;

static_assert(static_cast<int>(NcclResult::kUnhandledCudaError) == ncclUnhandledCudaError);
static_assert(static_cast<int>(NcclResult::kSystemError) == ncclSystemError);
static_assert(static_cast<int>(NcclResult::kInternalError) == ncclInternalError);
static_assert(static_cast<int>(NcclResult::kInvalidArgument) == ncclInvalidArgument);
static_assert(static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);

// c10d returns a communicator's handle only after its init has ended (getCommPtr), and waits for that while it holds
// the mutex that abort() needs. So the handle is read from c10d's private member, which an explicit template
// instantiation may name.
ncclComm_t& handle_of(c10d::NCCLComm& communicator);
template <auto member>
struct HandleOf {
  friend ncclComm_t& handle_of(c10d::NCCLComm& communicator) { return communicator.*member; }
};
template struct HandleOf<&c10d::NCCLComm::ncclComm_>;

NcclFault fault_of(ncclResult_t result, ncclComm_t handle) {
  const char* const last = ncclGetLastError(handle);
  return {static_cast<NcclResult>(result),
          std::string("NCCL: ") + ncclGetErrorString(result) + ": " + (last == nullptr ? "no details" : last)};
}

bool is_broken(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

ncclResult_t state_of(ncclComm_t handle) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle, &state);
  return asked == ncclSuccess ? state : asked;
}

// The handle of a collective on the device that callers wait for. c10d's own wait() aborts the communicator when it
// fails, and queries NCCL's errors meanwhile; both would interfere with a revoke.
class WatchedWork final : public c10d::Work {
 public:
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<TwoPhaseAbort> abort, c10::DeviceIndex device,
              Milliseconds timeout)
      : inner_(std::move(inner)), abort_(std::move(abort)), device_(device), timeout_(timeout) {}

  void synchronize() override { inner_->synchronize(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  // Blocks the host until the current stream has passed the collective.
  bool wait(Milliseconds timeout) override {
    inner_->synchronize();
    const at::cuda::CUDAStream stream = at::cuda::getCurrentCUDAStream(device_);
    abort_->await_collective([&] { return stream.query(); }, timeout == kNoTimeout ? timeout_ : timeout);
    return true;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::shared_ptr<TwoPhaseAbort> abort_;
  const c10::DeviceIndex device_;
  const Milliseconds timeout_;
};

// Launches the collectives that are used on devices through TwoPhaseAbort. (Figures on the host go over Gloo.)
class NcclBackend final : public ProcessGroupNCCL {
 public:
  NcclBackend(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options,
              c10::intrusive_ptr<Options> nccl_options)
      : ProcessGroupNCCL(store, options.assignment.rank, options.assignment.world_size, std::move(nccl_options)),
        device_(options.device),
        timeout_(options.timeout),
        abort_(std::make_shared<TwoPhaseAbort>(TwoPhaseAbort::Calls{.revoke = [this] { revoke(); },
                                                                    .abort = [this] { ProcessGroupNCCL::abort(); },
                                                                    .error = [this] { return find_error(); },
                                                                    .on_error =
                                                                        [group = options.abort] {
                                                                          if (group) group->fire();
                                                                        }})) {
    if (options.abort) options.abort->add_action([abort = abort_] { abort->cut(); });
  }
  // Called by the training thread, after a cut or without one. It aborts the communicator and calls neither finalize,
  // which waits for peers, nor destroy.
  ~NcclBackend() override { abort_->abort(); }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;

  // Connects eagerly, so that a broken device or network is reported when the group is formed and not in the first
  // step.
  void connect() {
    abort_->check();
    eagerConnectSingleDevice(device_);  // the communicator is non-blocking: its init continues on a thread of NCCL's
    const std::shared_ptr<c10d::NCCLComm> communicator = getNCCLComm(std::to_string(device_.index()));
    TORCH_CHECK_WITH(DistBackendError, communicator != nullptr, "c10d made no NCCL communicator for ", device_);
    const ncclComm_t handle = handle_of(*communicator);
    abort_->await_init(
        [&] {
          const ncclResult_t state = state_of(handle);
          if (is_broken(state)) throw fault_of(state, handle);
          if (state == ncclInProgress) return false;
          const c10::cuda::CUDAGuard guard(device_);
          handle_ = reinterpret_cast<ncclComm_t>(getCommPtr());  // NOLINT(performance-no-int-to-ptr): so c10d has it
          return true;
        },
        timeout_);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return watched(abort_->launch([&] { return ProcessGroupNCCL::broadcast(tensors, options); }));
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return watched(abort_->launch([&] { return ProcessGroupNCCL::allreduce(tensors, options); }));
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_counts, std::vector<int64_t>& input_counts,
                                               const c10d::AllToAllOptions& options) override {
    return watched(abort_->launch(
        [&] { return ProcessGroupNCCL::alltoall_base(output, input, output_counts, input_counts, options); }));
  }

 private:
  c10::intrusive_ptr<c10d::Work> watched(c10::intrusive_ptr<c10d::Work> work) const {
    if (work == nullptr) return work;  // asyncOp is false: the collective is in the caller's stream
    return c10::make_intrusive<WatchedWork>(std::move(work), abort_, device_.index(), timeout_);
  }
  // Returns at once; NCCL's own thread waits for the kernels, which see the abort flag.
  void revoke() {
    const c10::cuda::CUDAGuard guard(device_);
    const ncclResult_t result = ncclCommRevoke(handle_, NCCL_REVOKE_DEFAULT);
    if (is_broken(result)) throw fault_of(result, handle_);
  }
  [[nodiscard]] std::exception_ptr find_error() const {
    const ncclResult_t state = state_of(handle_);
    return is_broken(state) ? std::make_exception_ptr(fault_of(state, handle_)) : nullptr;
  }

  const at::Device device_;
  const Milliseconds timeout_;
  ncclComm_t handle_ = nullptr;  // c10d's; set when the init has ended, before the watcher that uses it begins
  std::shared_ptr<TwoPhaseAbort> abort_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const GroupOptions& options) {
  auto nccl_options = ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  nccl_options->is_high_priority_stream = true;  // a bucket's all-reduce must not queue behind the backward's kernels
  nccl_options->config.blocking = 0;             // so that an abort can end an init, or a launch that connects
  auto nccl = c10::make_intrusive<NcclBackend>(store, options, std::move(nccl_options));
  nccl->connect();
  return nccl;
}

}  // namespace lockstep
