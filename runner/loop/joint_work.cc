#include "runner/loop/joint_work.h"

#include <array>
#include <utility>
#include <vector>

#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/process_group.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {
namespace {

constexpr int kTerminated = static_cast<int>(ExitCode::kTerminated);
constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);

enum Slot : size_t { kIncomplete, kTerminates, kInterrupts, kLeaves, kSlots };

}  // namespace

JointWork::JointWork(ProcessGroup& group, const StopToken& stop, PhaseClock& clock, std::string when)
    : group_(group), stop_(stop), clock_(clock), when_(std::move(when)) {}

bool JointWork::goes_on() {
  clock_.progress();
  is_complete_ = is_complete_ && !stop_.is_cut() && !stop_.requests().any();
  return is_complete_;
}

JointEnd JointWork::end() {
  if (stop_.is_cut()) leave_group("the group was cut " + when_);
  const StepRequests asked = stop_.requests();
  const std::array<double, kSlots> row{is_complete_ ? 0.0 : 1.0, asked.stop_code == kTerminated ? 1.0 : 0.0,
                                       asked.stop_code == kInterrupted ? 1.0 : 0.0, asked.leave_together ? 1.0 : 0.0};
  const PhaseScope waiting(clock_, Phase::kWaiting);
  const std::vector<double> totals = sum_over_ranks(group_, row);
  JointEnd end{.is_complete = totals[kIncomplete] == 0.0, .requests = {}};
  if (totals[kTerminates] > 0.0) {
    end.requests.stop_code = kTerminated;
  } else if (totals[kInterrupts] > 0.0) {
    end.requests.stop_code = kInterrupted;
  }
  end.requests.leave_together = totals[kLeaves] > 0.0;
  return end;
}

}  // namespace lockstep
