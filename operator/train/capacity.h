// Capacity: how many pods of a job are scheduled, and how many wait. Values.
#pragma once

namespace lockstep::train {

struct Capacity {
  int desired = 0;  // numNodes
  int needed = 0;   // elastic.minNodes, or all
  int placed = 0;   // node ranks whose pod is scheduled
  int waiting = 0;  // those whose pod is not scheduled yet, or that may not have a pod yet: quota, an earlier job's pod
  int starting = 0;          // others whose container has not started: its image is pulled, a create was refused, …
  int holding = 0;           // those whose pod is scheduled, or takes up a part of a quota that is exhausted
  bool is_at_fault = false;  // a container of a scheduled pod cannot be started
  bool is_initializing = false;  // init containers run, in all pods that a node starts

  // Do so many wait that the job could not run even if all others were ready?
  [[nodiscard]] bool is_short() const { return desired - waiting < needed; }
  // Have so few pods started that they cannot form a group?
  [[nodiscard]] bool waits_for_pods() const { return desired - waiting - starting < needed; }
};

}  // namespace lockstep::train
