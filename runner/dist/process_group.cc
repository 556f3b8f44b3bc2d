#include "runner/dist/process_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "runner/base/open_files.h"
#include "runner/dist/abandonable_backend.h"
#include "runner/dist/backends.h"
#include "runner/dist/fault.h"
#include "runner/dist/store_handle.h"

namespace lockstep {

const char* to_string(GroupBackend backend) { return backend == GroupBackend::kNccl ? "nccl" : "gloo"; }

struct ProcessGroup::Impl {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

ProcessGroup::ProcessGroup(GroupOptions options, std::unique_ptr<Impl> impl)
    : options_(std::move(options)), impl_(std::move(impl)) {}

ProcessGroup::~ProcessGroup() {
  if (options_.abort) options_.abort->retire();
}

bool ProcessGroup::is_solo() const { return impl_ == nullptr; }

c10d::ProcessGroup* ProcessGroup::handle() const { return impl_ == nullptr ? nullptr : impl_->group.get(); }

namespace {

Error backend_error(const GroupOptions& options, const std::exception& e) {
  const Failure fault = classify_fault(e);
  const std::string who = std::string(to_string(options.backend)) + " could not start on rank " +
                          std::to_string(options.assignment.rank) + " (device " + options.device.str() + "): ";
  // An error that NCCL reports while it starts is this machine's, unless it is ncclRemoteError.
  const bool is_ours = nccl_result_of(e).value_or(NcclResult::kRemoteError) != NcclResult::kRemoteError;
  if ((fault.code == ExitCode::kPeerLost || fault.code == ExitCode::kTimeout) && !is_ours) {
    return Error{ErrorCode::kRetry,
                 who + fault.message + open_files_hint(fault.message, options.assignment.world_size - 1)};
  }
  std::string ways_out = "; --master_port PORT takes another port";
  if (options.backend == GroupBackend::kNccl) {
    ways_out = "; set NCCL_DEBUG=INFO to see why, use --backend gloo to go on without NCCL" + ways_out;
  }
  return Error{ErrorCode::kUnavailable, who + fault.message + ways_out};
}

c10::intrusive_ptr<c10d::Backend> nccl_or_throw([[maybe_unused]] const c10::intrusive_ptr<c10d::Store>& store,
                                                [[maybe_unused]] const GroupOptions& options) {
#if defined(LOCKSTEP_CUDA)
  return make_nccl_backend(store, options);
#else
  throw std::runtime_error("this build has no NCCL (configure with -DLOCKSTEP_CUDA=ON)");
#endif
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::form(const StoreHandle& store, const GroupOptions& options) {
  using c10d::ProcessGroup;
  try {
    auto impl = std::make_unique<Impl>();
    impl->group =
        c10::make_intrusive<ProcessGroup>(store.get(), options.assignment.rank, options.assignment.world_size);
    const auto gloo = c10::make_intrusive<AbandonableBackend>(make_gloo_backend(store.get(), options), options.abort);
    impl->group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO, gloo);
    if (options.abort) options.abort->gloo_is_ready();
    if (options.backend == GroupBackend::kNccl) {
      impl->group->setBackend(at::kCUDA, ProcessGroup::BackendType::NCCL, nccl_or_throw(store.get(), options));
      impl->group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
    } else {
      if (options.device.is_cuda()) impl->group->setBackend(at::kCUDA, ProcessGroup::BackendType::GLOO, gloo);
      impl->group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
    }
    gloo->setTimeout(options.timeout);
    if (options.abort) options.abort->group_is_formed();
    return std::unique_ptr<lockstep::ProcessGroup>(new lockstep::ProcessGroup(options, std::move(impl)));
  } catch (const UnusableAddress& e) {
    if (options.abort) options.abort->retire();
    // After a first group the address is known to be good: an interface that is down, or a full table of open files,
    // passes.
    const std::string hint = open_files_hint(e.what(), 1);
    const bool passes = options.has_formed_before || !hint.empty();
    return Error{passes ? ErrorCode::kRetry : ErrorCode::kInvalid, e.what() + hint};
  } catch (const std::exception& e) {
    if (options.abort) options.abort->retire();
    return backend_error(options, e);
  }
}

std::unique_ptr<ProcessGroup> ProcessGroup::solo(const GroupOptions& options) {
  LOCKSTEP_CHECK(options.assignment.world_size == 1, "a solo group has one rank");
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(options, nullptr));
}

}  // namespace lockstep
