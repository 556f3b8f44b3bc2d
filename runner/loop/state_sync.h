// State sync: at each forming all ranks come to hold the same state, from a live rank, a checkpoint, given weights, or
// the seed, in this order (architecture §3). A checkpoint comes before a live rank whose state is older: one that was
// cut off, while those that went on without it are gone.
// Threads: the training thread; collective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/config/run_config.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/process_group.h"
#include "runner/dist/store_handle.h"
#include "runner/loop/stop_token.h"
#include "runner/loop/training_state.h"

namespace lockstep {

class DeviceStream;
class PhaseClock;

struct SyncResult {
  std::string origin;                // "initialised from seed 42", "resumed from …", for people
  std::vector<std::string> remarks;  // checkpoints passed over and why; a place in the data counted anew
  int64_t resumed_step = 0;
  // Above every one that this state was trained in, even when the clock was set back.
  uint64_t generation = 0;
  bool from_live_rank = false;
  bool has_changed = false;  // this rank's state is another one than before
};

struct SyncOptions {
  std::string folder;  // of the run's checkpoints
  RunIdentity identity;
  uint64_t generation = 0;
  Result<BatchShape> first_batch;  // of a run that starts now; its error counts when one does
  // Rank 0 has read or initialised the state, which is still to go to the others: a group that breaks meanwhile finds
  // it here.
  std::function<void(const SyncResult&)> on_start = [](const SyncResult&) {};
  // A state comes from a live rank, which may be gone soon: from now on there is something to lose.
  std::function<void()> on_live_state = [] {};
  std::function<void()> on_message = [] {};  // after each message of a transfer
};

// What it works on; all outlive the call.
struct SyncParts {
  const RunConfig& config;
  Workload& workload;
  TrainingState& state;
  ProcessGroup& group;
  DeviceStream& stream;
  const StoreHandle& store;
  FileSystem& fs;
  PhaseClock& clock;
  StopToken stop = {};
};

using SyncOutcome = std::variant<SyncResult, Failure>;

// Rank 0 alone touches the disk; when that fails, all ranks have its failure. `progress` of the workload travels with
// the counters. On the clock all of it is Phase::kWaiting, but for the reading, so that a rank 0 with a slow disk is
// told from those that it keeps waiting. No tensor is sent when no rank lacks anything.
// A cut ends the reading and the transfer (kPeerLost, or an exception of leave_group). So does a stop, except where
// rank 0 receives: it alone writes, and what it receives is what the last checkpoint is to hold.
SyncOutcome sync_state(const SyncParts& parts, const SyncOptions& options);

}  // namespace lockstep
