// Phases of a run: which one a step belongs to, what is trained in it, where it ends. Pure.
//
// A phase ends with its last epoch, or earlier when patience is out (Trainer). All of it follows from the counters, so
// that ranks whose group broke in the middle of a change of phase agree on the phase without exchanging anything.
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

// The flags, with what the phase says instead.
TrainingOptions options_in(const TrainingPhase& phase, const TrainingOptions& training);

// Where in the steps of the run the present phase lies, and all the phases that are left with it.
struct PhaseSteps {
  int64_t begin = 0;  // the first step of the phase
  int64_t end = 0;    // the step after its last one
  int64_t total = 0;  // the step after the last one of the run, when no phase ends early
};
// max_steps: as --max_steps; 0: no limit.
PhaseSteps phase_steps(const std::vector<TrainingPhase>& phases, const Counters& counters, int64_t max_steps,
                       BatchSource& source);

// `training`: options_in the phase. Steps count from the phase's first.
LrScheduleOptions lr_schedule_in(const TrainingOptions& training, const Counters& counters, const PhaseSteps& steps,
                                 BatchSource& source);

// After the last step of a phase, on all ranks alike: the one that follows begins.
void begin_next_phase(Counters& counters);

// "cached: 15 epochs, lr 0.0001; whole: 30 epochs, without heads"
std::string describe_phases(const std::vector<TrainingPhase>& phases);

// A checkpoint says that it was trained in phase `counters.phase` of a run with fewer. kInvalid, with what to do.
Status check_phase(const std::vector<TrainingPhase>& phases, const Counters& counters, const std::string& checkpoint);

}  // namespace lockstep
