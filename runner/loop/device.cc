#include "runner/loop/device.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/cuda.h>
#include <torch/types.h>
#if defined(LOCKSTEP_CUDA)
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <array>
#include <thread>

#include "runner/base/cgroup.h"
#include "runner/base/plural.h"
#include "runner/contract/cuda_architectures.h"

namespace lockstep {
namespace {

#if defined(LOCKSTEP_CUDA)
constexpr bool kCudaBuild = true;

Status check_architecture(int index) {
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  // LOCKSTEP_CUDA_ARCHITECTURE_LIST is set by the build.
  const ComputeCapability capability{.major = properties->major, .minor = properties->minor};
  if (has_code_for(LOCKSTEP_CUDA_ARCHITECTURE_LIST, capability)) return {};
  return Error{ErrorCode::kInvalid, "GPU " + std::to_string(index) + " (" + properties->name +
                                        ") has compute capability " + to_string(capability) +
                                        ", this build has " LOCKSTEP_CUDA_ARCHITECTURE_LIST
                                        "; build with -DLOCKSTEP_CUDA_ARCHITECTURES for it, or use --device cpu"};
}
#else
constexpr bool kCudaBuild = false;

Status check_architecture(int /*index*/) { return {}; }
#endif

}  // namespace

Result<std::optional<int>> choose_gpu(const LaunchOptions& launch, const World& world, const GpusHere& gpus) {
  constexpr std::optional<int> kCpu;
  if (launch.device == DeviceChoice::kCpu) return kCpu;
  const int counted = gpus.build_has_cuda ? gpus.counted.value_or(0) : 0;
  const int needed = world.assignment.local_world_size > 1 ? counted : std::min(counted, 1);
  if (gpus.started < needed) {
    std::string message = "the driver shows " + plural(counted, "GPU") + ", but CUDA starts ";
    message.append(gpus.started == 0 ? "none" : std::to_string(gpus.started));
    return Error{ErrorCode::kUnavailable,
                 message.append(": a GPU, its driver or the container's CUDA libraries are at fault; lockstep doctor "
                                "says what to fix, --device cpu trains without GPUs")};
  }
  if (gpus.started == 0) {
    if (launch.device == DeviceChoice::kAuto) return kCpu;
    const char* why = gpus.build_has_cuda ? "the driver shows none; see CUDA_VISIBLE_DEVICES"
                                          : "this build has no CUDA, configure with -DLOCKSTEP_CUDA=ON";
    std::string message = "--device cuda: no GPU can be used: ";
    message.append(why).append("; use --device cpu or auto");
    return Error{ErrorCode::kInvalid, message};
  }
  // Over Gloo the ranks of a node may share a GPU. With NCCL each needs its own: two ranks can share one only from NCCL
  // 2.30.3 on, and PyTorch 2.11 includes 2.28.9. (Two nodes of one rank each on one machine pass this check.)
  const bool shares = launch.backend == BackendChoice::kGloo;
  if (world.assignment.local_rank >= gpus.started && !shares) {
    std::string message =
        "local rank " + std::to_string(world.assignment.local_rank) + " has no GPU: this machine shows ";
    message.append(std::to_string(gpus.started))
        .append("; start fewer ranks with --nproc, or share with --backend gloo");
    // An agent starts no more ranks than it counts GPUs, unless they may be shared.
    return Error{counted > 0 ? ErrorCode::kUnavailable : ErrorCode::kInvalid, message};
  }
  return std::optional<int>(world.assignment.local_rank % gpus.started);
}

Result<at::Device> choose_device(const LaunchOptions& launch, const World& world, std::optional<int> gpus_counted) {
  const bool may_use_gpus = kCudaBuild && launch.device != DeviceChoice::kCpu && torch::cuda::is_available();
  TRY_ASSIGN(const std::optional<int> index,
             choose_gpu(launch, world,
                        {.build_has_cuda = kCudaBuild,
                         .started = may_use_gpus ? static_cast<int>(torch::cuda::device_count()) : 0,
                         .counted = gpus_counted}));
  if (!index) return at::Device(at::kCPU);
  TRY(check_architecture(*index));
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*index));
}

Result<GroupBackend> choose_backend(const LaunchOptions& launch, at::Device device) {
  if (launch.backend == BackendChoice::kGloo) return GroupBackend::kGloo;
  if (launch.backend == BackendChoice::kNccl && !device.is_cuda()) {
    return Error{ErrorCode::kInvalid,
                 "--backend nccl needs a GPU, and this rank computes on the CPU; use --backend gloo"};
  }
  return device.is_cuda() ? GroupBackend::kNccl : GroupBackend::kGloo;
}

void use_device([[maybe_unused]] at::Device device) {
#if defined(LOCKSTEP_CUDA)
  if (device.is_cuda()) c10::cuda::set_device(device.index());
#endif
}

const char* to_string(Precision precision) {
  constexpr std::array kNames{"fp32", "tf32", "bf16", "fp16"};
  static_assert(kNames.size() == static_cast<size_t>(Precision::kFp16) + 1);
  return kNames.at(static_cast<size_t>(precision));
}

Result<PrecisionChoice> choose_precision(const TrainingOptions& training, at::Device device) {
  PrecisionChoice choice;
  if (training.precision_given) {
    choice.precision = training.precision;
    const bool gpu_only = choice.precision == Precision::kFp16 || choice.precision == Precision::kTf32;
    if (gpu_only && !device.is_cuda()) {
      std::string message = "--precision ";
      message.append(to_string(choice.precision)).append(" needs a GPU; on the CPU use fp32 or bf16");
      return Error{ErrorCode::kInvalid, message};
    }
    return choice;
  }
  if (!training.use_amp) return choice;
  if (!device.is_cuda()) {
    choice.notes.emplace_back("--use_amp: does nothing on the CPU");
    return choice;
  }
#if defined(LOCKSTEP_CUDA)
  const bool has_bf16 = at::cuda::getDeviceProperties(device.index())->major >= 8;
  choice.precision = has_bf16 ? Precision::kBf16 : Precision::kFp16;
#endif
  return choice;
}

int threads_of_rank(const CoresHere& here, int local_world_size, bool may_be_bound) {
  const int ranks = std::max(1, local_world_size);
  if (!may_be_bound) return std::max(1, whole_cores(here.by_affinity, here.quota) / ranks);
  return std::max(1, std::min(here.by_affinity, whole_cores(here.machine, here.quota) / ranks));
}

int choose_threads(const LaunchOptions& launch, const World& world) {
  const int node_cores = world.assignment.node_cores;
  if (launch.threads > 0) return launch.threads;
  if (node_cores > 0) return std::max(1, node_cores / std::max(1, world.assignment.local_world_size));
  const CoresHere here{.machine = std::max(1, static_cast<int>(std::thread::hardware_concurrency())),
                       .by_affinity = cores_by_affinity(),
                       .quota = Cgroups().cores_allowed()};
  const bool may_be_bound = world.source == WorldSource::kSlurm || world.source == WorldSource::kMpi;
  return threads_of_rank(here, world.assignment.local_world_size, may_be_bound);
}

void apply_device_settings(const TrainingOptions& training, Precision precision, int threads) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
  if (precision == Precision::kTf32) at::globalContext().setFloat32MatmulPrecision("high");
  if (training.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
  }
}

AutocastScope::AutocastScope(Precision precision, at::Device device)
    : type_(device.type()), active_(precision == Precision::kBf16 || precision == Precision::kFp16) {
  if (!active_) return;
  at::autocast::set_autocast_dtype(type_, precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  // The autocast cache holds casts of the parameters, which the optimizer is about to change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, false);
}

}  // namespace lockstep
