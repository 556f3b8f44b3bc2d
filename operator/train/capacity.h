// Capacity: how many nodes of a job have a machine, and how many wait for others to let go of one. Values.
#pragma once

namespace lockstep::train {

struct Capacity {
  int desired = 0;  // numNodes
  int needed = 0;   // elastic.minNodes, or all
  int placed = 0;   // nodes whose pod has a machine
  int waiting = 0;  // nodes whose pod has none yet, or that may not have a pod yet: quota, an earlier job's pod
  int holding = 0;  // nodes whose pod has a machine, or a place in a quota that is used up
  bool is_at_fault = false;  // a container of a pod that has a machine cannot be started

  // Even if all others did well, the job could not run.
  [[nodiscard]] bool is_short() const { return desired - waiting < needed; }
};

}  // namespace lockstep::train
