// Decides how many ranks this machine gets, and the line to print about it. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runner/base/result.h"
#include "runner/launch/launch_options.h"

namespace lockstep {

// NCCL's own: 1 lets several ranks share a GPU, from 2.30.3 on. An older NCCL refuses when the group forms.
inline constexpr std::string_view kNcclSharesGpus = "NCCL_MULTI_RANK_GPU_ENABLE";

struct LocalDevices {
  int gpus = 0;                     // visible to this process
  bool build_has_cuda = false;      // this build of lockstep-worker can use them
  std::optional<int> nproc_of_pod;  // LOCKSTEP_NPROC_PER_NODE
  bool nccl_shares_gpus = false;    // kNcclSharesGpus
};

struct LocalRanks {
  int nproc = 1;
  bool uses_gpus = false;
  bool may_share_gpus = false;  // more ranks than there are GPUs: with --backend gloo, or where NCCL is told so
  bool is_warning = false;      // `line` goes to stderr
  std::string line;             // "4 GPUs detected, training on 4 ranks"
};

// kInvalid: --multi_gpu=false with --nproc above 1; --device cuda without a GPU or without a CUDA build; --nproc above
// the GPUs, unless these may be shared, or with --device cpu. kUnavailable: the same where the pod says how many ranks
// there are: then a GPU of this machine is missing.
Result<LocalRanks> plan_local_ranks(const LaunchOptions& launch, const LocalDevices& devices);

// Of a program of the user's, which may run on the CPU, or share GPUs: the machine is only described. With a warning
// where there are more ranks than GPUs.
LocalRanks describe_program_ranks(int nproc, int gpus);

}  // namespace lockstep
