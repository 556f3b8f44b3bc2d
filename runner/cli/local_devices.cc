#include "runner/cli/local_devices.h"

#include "runner/base/plural.h"

namespace lockstep {
namespace {

Result<int> choose_nproc(const LaunchOptions& launch, const LocalDevices& devices, int usable_gpus) {
  const bool one_rank = launch.multi_gpu.has_value() && !*launch.multi_gpu;
  if (one_rank && launch.nproc.value_or(1) > 1) {
    return invalid("--multi_gpu false means one rank, but --nproc is " + std::to_string(*launch.nproc) +
                   ": leave one of them out");
  }
  if (one_rank) return 1;
  if (launch.nproc) return *launch.nproc;
  if (devices.nproc_of_pod) return *devices.nproc_of_pod;
  return usable_gpus > 0 ? usable_gpus : 1;
}

Status check_device_choice(const LaunchOptions& launch, const LocalDevices& devices) {
  if (launch.device != DeviceChoice::kCuda) return {};
  if (!devices.build_has_cuda) {
    return invalid("--device cuda, but this build has no CUDA: build with LOCKSTEP_CUDA=ON, or use --device cpu");
  }
  if (devices.gpus == 0) {
    return invalid(
        "--device cuda, but no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use "
        "--device cpu");
  }
  return {};
}

LocalRanks describe_cpu(const LaunchOptions& launch, const LocalDevices& devices, int nproc) {
  const std::string end = "training on the CPU with " + plural(nproc, "rank");
  LocalRanks ranks{.nproc = nproc, .uses_gpus = false, .is_warning = true, .line = ""};
  if (launch.device == DeviceChoice::kCpu) {
    ranks.is_warning = false;
    ranks.line = end;
  } else if (devices.gpus > 0) {
    ranks.line =
        "warning: " + plural(devices.gpus, "GPU") + " found, but this build has no CUDA (LOCKSTEP_CUDA=OFF), " + end;
  } else {
    ranks.line = "warning: no GPU found, " + end;
  }
  return ranks;
}

}  // namespace

Result<LocalRanks> plan_local_ranks(const LaunchOptions& launch, const LocalDevices& devices) {
  TRY(check_device_choice(launch, devices));
  const bool may_use_gpus = launch.device != DeviceChoice::kCpu && devices.build_has_cuda;
  const int usable_gpus = may_use_gpus ? devices.gpus : 0;
  TRY_ASSIGN(const int nproc, choose_nproc(launch, devices, usable_gpus));
  if (usable_gpus == 0) return describe_cpu(launch, devices, nproc);
  const bool may_share_gpus = launch.backend == BackendChoice::kGloo || devices.nccl_shares_gpus;
  const bool is_of_pod = !launch.nproc && devices.nproc_of_pod && nproc == *devices.nproc_of_pod;
  if (nproc > usable_gpus && !may_share_gpus && is_of_pod) {
    return Error{ErrorCode::kUnavailable,
                 "this pod is to have " + plural(nproc, "rank") + ", one for each of its GPUs, and the driver shows " +
                     plural(usable_gpus, "GPU") + ": look at this machine with lockstep doctor"};
  }
  if (nproc > usable_gpus && !may_share_gpus) {
    return invalid("--nproc " + std::to_string(nproc) + " is more than the " + plural(usable_gpus, "GPU") +
                   " visible: lower --nproc, share GPUs with --backend gloo, or use --device cpu");
  }
  return LocalRanks{.nproc = nproc,
                    .uses_gpus = true,
                    .may_share_gpus = may_share_gpus,
                    .is_warning = false,
                    .line = plural(usable_gpus, "GPU") + " detected, training on " + plural(nproc, "rank")};
}

LocalRanks describe_program_ranks(int nproc, int gpus) {
  LocalRanks ranks{.nproc = nproc, .uses_gpus = gpus > 0, .may_share_gpus = true, .is_warning = false, .line = ""};
  ranks.line = "starting " + plural(nproc, "rank");
  if (gpus > 0) ranks.line += " on a machine with " + plural(gpus, "GPU");
  if (gpus > 0 && nproc > gpus) {
    ranks.is_warning = true;
    ranks.line = "warning: " + ranks.line + ": a rank whose LOCAL_RANK is " + std::to_string(gpus) +
                 " or more has none of its own, and a program that takes a GPU per rank ends there (\"invalid device "
                 "ordinal\"): lower --nproc";
  }
  return ranks;
}

}  // namespace lockstep
