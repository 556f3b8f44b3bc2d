// What an exception out of torch, c10d, gloo, NCCL or CUDA means for the run. Its type and NCCL's code decide; texts
// are read only where a library has one type for several things. Threads: pure.
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "runner/contract/exit_code.h"

namespace lockstep {

// Thrown where the meaning is known: a group that was cut (kPeerLost), a wait that took too long (kTimeout), a batch
// that could not be fetched (kData).
struct RunFault : std::runtime_error {
  RunFault(ExitCode its_code, const std::string& text) : std::runtime_error(text), code(its_code) {}
  ExitCode code;
};

// NCCL's errors, numbered as in nccl.h.
enum class NcclResult {
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

// An error that NCCL told this room itself.
struct NcclFault : std::runtime_error {
  NcclFault(NcclResult its_result, const std::string& text) : std::runtime_error(text), result(its_result) {}
  NcclResult result;
};

// What NCCL said: of a NcclFault, or of c10d's exception, whose text names the code ("ncclRemoteError: …").
std::optional<NcclResult> nccl_result_of(const std::exception& exception);

// kPeerLost (a peer closed or refused the connection), kTimeout (a collective or store wait ran out of time),
// kOutOfMemory, kDeviceFault (CUDA error), else kCrash: an error of ours, kept as it is in the message.
Failure classify_fault(const std::exception& exception);

}  // namespace lockstep
