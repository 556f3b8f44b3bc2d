// State transfer: sends the state of one rank to the ranks of a new group that lack it.
//
// Role: the transfer of the state when a group forms (docs/recovery.md). recovery/state_source.h chooses the source
// from the ranks' claims. Tensors are received into staging buffers and copied into the state only after this rank's
// device has received all of them, there was no cut, and all ranks have reached the same point. So a rank with a partly
// received state can never become a source.
// Threads: the training thread. Errors: transfers throw (fault.h) when the group breaks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "runner/recovery/state_source.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

class DeviceStream;
class ProcessGroup;

// Every rank's claim, in rank order.
std::vector<StateClaim> gather_claims(ProcessGroup& group, const StateClaim& mine);

// All ranks call it with the same `source` and `receives` (by rank; false for the source). `tensors` have the same
// names, shapes and dtypes on all ranks. On a rank that receives they are overwritten after all ranks have received
// everything; the others take no part in the transfer of the bytes. `on_progress` is called on every rank after each
// message.
void transfer_state(
    ProcessGroup& group, DeviceStream& device, const NamedTensors& tensors, int source,
    const std::vector<bool>& receives, const std::function<void()>& on_progress = [] {});

// For each parameter the bits of its fp64 sum and of its sum of magnitudes: equal when the replicas are equal. For
// --drift_check_every.
std::vector<int64_t> parameter_checksum(const NamedTensors& parameters);

// The ranks whose checksum differs from rank 0's; empty when all replicas are equal.
std::vector<int> drifted_ranks(ProcessGroup& group, DeviceStream& device, const NamedTensors& parameters);

}  // namespace lockstep
