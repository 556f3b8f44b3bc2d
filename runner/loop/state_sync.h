// State sync: when a group has formed, all ranks come to hold the same state: that of a live rank, else of a
// checkpoint, else given weights, else the seed. A checkpoint is preferred to a live rank whose state
// is older. That happens when a rank was cut off, the others went on without it and wrote a checkpoint, and then died.
// Threads: the training thread; collective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/exit_code.h"
#include "runner/dist/process_group.h"
#include "runner/dist/store_handle.h"
#include "runner/loop/rank_context.h"
#include "runner/loop/stop_token.h"
#include "runner/loop/training_state.h"

namespace lockstep {

struct SyncResult {
  std::string origin;                // for messages: "initialised from seed 42", "resumed from …"
  std::vector<std::string> remarks;  // checkpoints that were passed over and why; a step number that had to change
  int64_t resumed_step = 0;
  // The generation that this group's checkpoints are stamped with. At least the group's own; above every generation
  // that this state was trained in, even when the clock was set back.
  uint64_t generation = 0;
  bool from_live_rank = false;
  bool has_changed = false;  // this rank's tensors and counters were replaced
};

struct SyncOptions {
  std::string folder;  // of the run's checkpoints
  RunIdentity identity;
  uint64_t generation = 0;
  Result<BatchShape> first_batch;  // batch of a run that starts now; its error is reported only if one does
  // Called on rank 0 when it has read or initialised the state, before the state goes to the other ranks, so that the
  // start is reported even if the group breaks meanwhile.
  std::function<void(const SyncResult&)> on_start = [](const SyncResult&) {};
  // Called when the state comes from a live rank. It may be in no checkpoint, so from now on a signal must not end the
  // process at once (TrainerContext::defer_stops).
  std::function<void()> on_live_state = [] {};
};

// What sync_state works on; all outlive the call.
struct SyncContext {
  const RankContext& rank;
  TrainingState& state;
  ProcessGroup& group;
  const StoreHandle& store;
  StopToken stop = {};
};

using SyncOutcome = std::variant<SyncResult, Failure>;

// Only rank 0 reads the volume; when that fails, all ranks return its failure. The workload's progress is sent with the
// counters. The phase clock shows Phase::kWaiting throughout, except while rank 0 reads (Phase::kStartup): so a slow
// volume shows on rank 0, and not on the ranks that wait for it. No tensor is sent when every rank has the state.
// A cut ends the reading and the transfer (kPeerLost, or an exception of leave_group). So does a stop, except while
// rank 0 receives: it alone writes checkpoints, and the last one is to hold the state that it is receiving.
SyncOutcome sync_state(const SyncContext& context, const SyncOptions& options);

}  // namespace lockstep
