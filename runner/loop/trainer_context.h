// The objects that a Trainer works with. The worker makes them; they live as long as the process.
#pragma once

#include <functional>
#include <string>

#include "runner/contract/beat_page.h"
#include "runner/contract/checkpoint_layout.h"
#include "runner/contract/exit_code.h"
#include "runner/link/agent_link.h"
#include "runner/loop/rank_context.h"
#include "runner/loop/reporter.h"

namespace lockstep {

// Everything referred to outlives the trainer.
struct TrainerContext {
  RankContext rank;
  Reporter& reporter;
  BeatPage& page;
  // The exit code that a signal asked for: 130 (Ctrl-C), 143 (SIGTERM), or 0 without a signal.
  std::function<int()> stop_code;
  // Called once this rank holds a state that no checkpoint may have yet. From then on a signal does not end the
  // process; it sets stop_code (link/stop_signals.h).
  std::function<void()> defer_stops = [] {};
  AgentLink* agent = nullptr;  // null: no agent, so no second group; a lost peer ends this rank
  int threads = 1;
  std::string folder;        // of the run
  bool locks_folder = true;  // false in a pod: an old rank 0 behind a network partition might hold the lock for ever.
                             // There the generation in the checkpoints keeps it from writing.
  std::string host_name;
  JobIdentity job;
  std::string resume_command;
  std::string launched_by;     // for the start table: as to_string(WorldSource)
  std::string nccl_variables;  // likewise
  // Called when the device is broken, before anything that holds its memory or a communicator is destroyed. Reports the
  // failure and ends the process.
  std::function<void(const Failure&)> on_device_fault = [](const Failure&) {};
};

}  // namespace lockstep
