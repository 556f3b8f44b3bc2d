// State transfer: at each forming all ranks come to hold the same state.
//
// Role: architecture §3, "Sync state". Who is the source is a pure function of what the ranks say
// (recovery/state_source.h); tensors are received into staging and copied at the end, when this rank's device has
// received all of them, no cut has come, and all ranks say the same: a torn receiver can never become a source.
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

// All ranks call it. `tensors` have the same names, shapes and dtypes everywhere; on a rank that receives they are
// overwritten after everything has come everywhere, elsewhere they stay as they are. `on_progress` is called after each
// message that this rank's device has sent or received.
void transfer_state(
    ProcessGroup& group, DeviceStream& device, const NamedTensors& tensors, int source, bool receives,
    const std::function<void()>& on_progress = [] {});

// fp64 sum and sum of magnitudes of every parameter, folded: equal on equal replicas. For --drift_check_every.
std::vector<int64_t> parameter_checksum(const NamedTensors& parameters);

// The ranks whose checksum differs from rank 0's; empty when all replicas are equal.
std::vector<int> drifted_ranks(ProcessGroup& group, DeviceStream& device, const NamedTensors& parameters);

}  // namespace lockstep
