// WorkerBuild: what a lockstep-worker is made of, as `lockstep-worker --build_info` says it in one line of JSON, for
// `lockstep doctor`. Pure.
#pragma once

#include <string>
#include <string_view>

#include "runner/base/result.h"

namespace lockstep {

struct WorkerBuild {
  std::string version;             // "0.1.0"
  std::string torch;               // "2.11.0"
  std::string cuda;                // the CUDA runtime it loads, "13.0"; empty: built without CUDA
  std::string cuda_architectures;  // "7.5,8.0,9.0+PTX"; empty: built without CUDA
  std::string nccl;                // the NCCL it loads, "2.28.9"; empty: none
};

std::string encode(const WorkerBuild& build);

// kInvalid when the line is not of this form.
Result<WorkerBuild> decode_worker_build(std::string_view line);

// "13.0" from CUDA's version number 13000.
std::string cuda_version_text(int version);
// "2.28.9" from NCCL's version number 22809.
std::string nccl_version_text(int version);

}  // namespace lockstep
