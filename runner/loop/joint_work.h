// JointWork: long work that all ranks do at the same time, each on its own part (an evaluation, entering a phase). A
// rank that is asked to stop, or to leave with the others, ends its part early and passes the request on in the
// reduction that ends the work. Then all ranks discard the work and obey the request. Threads: the training thread.
#pragma once

#include <string>

#include "runner/loop/stop_token.h"

namespace lockstep {

class PhaseClock;
class ProcessGroup;

struct JointEnd {
  bool is_complete = false;  // all ranks have completed their parts
  StepRequests requests;     // what any rank was asked to do meanwhile
};

class JointWork {
 public:
  // All outlive the work. `when`: for the message of a cut ("during an evaluation").
  JointWork(ProcessGroup& group, const StopToken& stop, PhaseClock& clock, std::string when);

  // Marks this rank as alive on the phase clock. False: it must end its part early and then call end().
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
