// JointWork: long work that all ranks do at the same time, each on its own part (an evaluation, entering a phase). A
// rank that is asked to stop, or to leave with the others, ends its part early and says so in the reduction that ends
// the work. Then all ranks discard the work, and all know of the request. Threads: the training thread.
#pragma once

#include <string>

#include "runner/loop/stop_token.h"

namespace lockstep {

class PhaseClock;
class ProcessGroup;

struct JointEnd {
  bool is_complete = false;  // on all ranks
  StepRequests requests;     // that any rank has met meanwhile
};

class JointWork {
 public:
  // All outlive the work. `when`: for the message of a cut ("during an evaluation").
  JointWork(ProcessGroup& group, const StopToken& stop, PhaseClock& clock, std::string when);

  // Shows that the rank works. False: it is to leave its part, and then to call end().
  bool goes_on();

  // Collective; the wait for the other ranks is Phase::kWaiting. Throws when the group was cut (leave_group).
  JointEnd end();

 private:
  ProcessGroup& group_;
  const StopToken& stop_;
  PhaseClock& clock_;
  std::string when_;
  bool is_complete_ = true;
};

}  // namespace lockstep
