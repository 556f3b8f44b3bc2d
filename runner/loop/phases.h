// Phases of a run: which one a step belongs to, what is trained in it, where it ends. Pure.
//
// A phase ends with its last epoch, or earlier when patience is used up (Trainer). The phase follows from the counters
// alone, so ranks whose group broke during a change of phase agree on it without exchanging anything.
// Threads: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/config/run_config.h"
#include "runner/data/batch_source.h"
#include "runner/loop/training_state.h"
#include "runner/models/workload.h"
#include "runner/optim/lr_schedule.h"

namespace lockstep {

// Never empty: a workload without phases has one, of --num_epochs, without a name.
std::vector<TrainingPhase> phases_of(const WorkloadInfo& info, const TrainingOptions& training);

// The flags, with lr and clip_grad_norm replaced where the phase sets them.
TrainingOptions options_in(const TrainingPhase& phase, const TrainingOptions& training);

// The range of steps of the present phase, and the last step of the run.
struct PhaseSteps {
  int64_t begin = 0;  // the first step of the phase
  int64_t end = 0;    // the step after its last one
  int64_t total = 0;  // the step after the last one of the run, when no phase ends early
};
// max_steps: as --max_steps; 0: no limit.
PhaseSteps phase_steps(const std::vector<TrainingPhase>& phases, const Counters& counters, int64_t max_steps,
                       BatchSource& source);

// `training`: as options_in returns it. The schedule counts steps from the first of the phase.
LrScheduleOptions lr_schedule_in(const TrainingOptions& training, const Counters& counters, const PhaseSteps& steps,
                                 BatchSource& source);

// To be called on all ranks after the last step of a phase: sets the counters to the start of the next one.
void begin_next_phase(Counters& counters);

// "cached: 15 epochs, lr 0.0001; whole: 30 epochs, without heads"
std::string describe_phases(const std::vector<TrainingPhase>& phases);

// For a run that has done all its steps: what would let it train further. "a higher --num_epochs", or whichever flag
// limits this run; "more epochs of whole" when no flag sets the epochs of its last phase.
std::string needed_to_continue(const WorkloadInfo& info, const TrainingOptions& training, int64_t steps_done);

// kInvalid when the checkpoint's phase (`counters.phase`) does not exist in this run, which has fewer phases; the
// message says what to do.
Status check_phase(const std::vector<TrainingPhase>& phases, const Counters& counters, const std::string& checkpoint);

}  // namespace lockstep
