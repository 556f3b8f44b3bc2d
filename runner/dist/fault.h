// What an exception out of torch, c10d, gloo, NCCL or CUDA means for the run: the one place that reads their texts.
// Threads: pure.
#pragma once

#include <exception>

#include "runner/contract/exit_code.h"

namespace lockstep {

// kPeerLost (a peer closed or refused the connection), kTimeout (a collective or store wait ran out of time),
// kOutOfMemory, kDeviceFault (CUDA error), else kCrash: an error of ours, kept as it is in the message.
Failure classify_fault(const std::exception& exception);

}  // namespace lockstep
