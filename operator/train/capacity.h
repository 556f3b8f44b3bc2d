// Capacity: how many pods of a job are scheduled, and how many wait. Values.
#pragma once

namespace lockstep::train {

struct Capacity {
  int desired = 0;  // numNodes
  int needed = 0;   // elastic.minNodes, or all
  // Of the node ranks that are not done.
  int num_scheduled = 0;  // their pod is scheduled
  // It is not yet, or they may not have one yet: quota, an earlier job's pod.
  int num_unscheduled = 0;
  // None of the unscheduled ones; its container has not started: its image is pulled, a create was refused, …
  int num_starting = 0;
  int num_occupying = 0;         // it is scheduled, or takes up a part of a quota that is exhausted
  bool is_at_fault = false;      // a container of a scheduled pod cannot be started
  bool is_initializing = false;  // init containers run, in all pods that a node starts

  // Do so many wait that the job could not run even if all others were ready?
  [[nodiscard]] bool is_short() const { return desired - num_unscheduled < needed; }
  // Have so few pods started that they cannot form a group?
  [[nodiscard]] bool waits_for_pods() const { return desired - num_unscheduled - num_starting < needed; }
};

}  // namespace lockstep::train
