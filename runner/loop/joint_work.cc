#include "runner/loop/joint_work.h"

#include <utility>
#include <vector>

#include "runner/dist/collectives.h"
#include "runner/dist/process_group.h"
#include "runner/telemetry/phase_clock.h"

namespace lockstep {

JointWork::JointWork(ProcessGroup& group, const StopToken& stop, PhaseClock& clock, std::string when)
    : group_(group), stop_(stop), clock_(clock), when_(std::move(when)) {}

bool JointWork::goes_on() {
  clock_.progress();
  is_complete_ = is_complete_ && !stop_.is_cut() && !stop_.requests().any();
  return is_complete_;
}

JointEnd JointWork::end() {
  if (stop_.is_cut()) leave_group("the group was cut " + when_);
  std::vector<double> sums{is_complete_ ? 0.0 : 1.0};
  append_requests(stop_.requests(), sums);
  const PhaseScope waiting(clock_, Phase::kWaiting);
  sums = sum_over_ranks(group_, sums);
  const StepRequests requests = extract_requests(sums);
  return {.is_complete = sums.front() == 0.0, .requests = requests};
}

}  // namespace lockstep
