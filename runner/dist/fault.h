// What an exception of torch, c10d, gloo, NCCL or CUDA means for the run. Its type and NCCL's code decide; the message
// is searched only when a library uses one type for several kinds of errors. Threads: pure.
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

// An error that a direct call of NCCL has returned (not through c10d).
struct NcclFault : std::runtime_error {
  NcclFault(NcclResult its_result, const std::string& text) : std::runtime_error(text), result(its_result) {}
  NcclResult result;
};

// NCCL's code: from an NcclFault, or from an exception of c10d whose text names it ("ncclRemoteError: …").
std::optional<NcclResult> nccl_result_of(const std::exception& exception);

// kPeerLost (a peer closed or refused the connection), kTimeout (a collective or store wait ran out of time),
// kOutOfMemory, kDeviceFault (CUDA error), else kCrash: an error of this program, whose message is kept unchanged.
Failure classify_fault(const std::exception& exception);

}  // namespace lockstep
