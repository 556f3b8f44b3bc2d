// StopToken: what ends long work before its end. One goes through everything that a rank does for longer than a moment:
// evaluation, restore, transfer of state, the wait for a checkpoint to be written. Whoever works long looks at it
// several times a second.
//
// A cut is obeyed by each rank alone, at once: the group is gone, and its state is kept. A request is made of one rank
// and obeyed by all together: whoever has it says so in the next reduction.
// Threads: the training thread.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

// What this rank was asked for; after a reduction: what any rank was.
struct StepRequests {
  int stop_code = 0;  // 0, 130 or 143
  bool leave_together = false;
  [[nodiscard]] bool any() const { return stop_code != 0 || leave_together; }
};

struct StopToken {
  std::function<bool()> is_cut = [] { return false; };
  std::function<StepRequests()> requests = [] { return StepRequests{}; };

  // The group is cut, or the job stops; not when the ranks are to leave together, which they do after a step.
  [[nodiscard]] bool is_stopped() const { return is_cut() || requests().stop_code != 0; }
};

// Throws what classify_fault takes for a lost peer: this rank keeps its state and waits for the next group. `why` is a
// sentence for people.
[[noreturn]] void leave_group(const std::string& why);

}  // namespace lockstep
