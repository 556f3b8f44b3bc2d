// StopToken: how long work learns that it has to end early. Passed to everything that may take longer than a second:
// evaluation, restore, transfer of state, the wait for a checkpoint to be written. Such work polls it several times a
// second.
//
// A cut: each rank obeys it alone and at once; it leaves the group and keeps its state. A request (to stop, to leave
// together) reaches one rank; that rank passes it on in the next reduction, and all ranks obey it at the same step.
// Threads: the training thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep {

// What this rank was asked to do; after a reduction, what any rank was asked to do.
struct StepRequests {
  int stop_code = 0;  // 0, 130 or 143
  bool leave_together = false;
  [[nodiscard]] bool any() const { return stop_code != 0 || leave_together; }
};

// Requests travel as the last numbers of a reduction: a rank appends its own, and takes what any rank was asked to do
// off the sums.
void append_requests(const StepRequests& requests, std::vector<double>& numbers);
StepRequests extract_requests(std::vector<double>& sums);

struct StopToken {
  std::function<bool()> is_cut = [] { return false; };
  std::function<StepRequests()> requests = [] { return StepRequests{}; };

  // True when the group is cut or the job is to stop. A request to leave together does not count: the ranks do that at
  // the end of a step.
  [[nodiscard]] bool is_stopped() const { return is_cut() || requests().stop_code != 0; }
};

// Throws an exception that classify_fault reports as a lost peer, so that this rank keeps its state and waits for the
// next group. `why`: a sentence for the log.
[[noreturn]] void leave_group(const std::string& why);

}  // namespace lockstep
