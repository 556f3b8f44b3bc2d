// AnnouncedNodes: how many nodes there are according to a launcher whose variables we do not read.
//
// Role: Kubeflow Trainer, LeaderWorkerSet, SkyPilot, Volcano and the generic NNODES start the same command several
// times and say so in the environment. Without --nnodes each copy would train the whole run alone; derive_world and
// check_agent_environment refuse that, with the flags that make them one run.
// Threads: pure.
#pragma once

#include <optional>
#include <string>

#include "runner/base/environment.h"

namespace lockstep {

struct AnnouncedNodes {
  std::string given_by;  // "PET_NNODES=2 (Kubeflow Trainer)"
  bool several = false;
  std::string flags;  // that make all of them one run, "--nnodes 2 --node_rank $PET_NODE_RANK …"
};

// Of the first such launcher that is found.
std::optional<AnnouncedNodes> find_announced_nodes(const Environment& environment);

}  // namespace lockstep
