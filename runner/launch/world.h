// World: who this process is among its peers, derived from the environment. Pure.
//
// Role: the one file where launchers' variables are understood. The first that is found decides: an assignment from
// the agent, torchrun, a pod's LOCKSTEP_*, an Indexed Job or StatefulSet, Slurm, MPI; without any of them it is alone.
// A launcher that says "one of N" and is none of these is refused by name (launch/announced_nodes.h).
// Threads: pure; the environment is an argument.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/result.h"
#include "runner/contract/messages.h"
#include "runner/launch/launch_options.h"

namespace lockstep {

inline constexpr int kDefaultCoordinatorPort = 29400;

// kFlags: --nnodes above 1 with --node_rank, no launcher's variables.
enum class WorldSource { kAgent, kTorchrun, kPod, kIndexedJob, kStatefulSet, kSlurm, kMpi, kFlags, kSingle };
const char* to_string(WorldSource source);

struct World {
  Assignment assignment;  // with kAgent: the newest from the agent
  int node_rank = 0;      // unset with kAgent
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  bool store_is_served_by_launcher = false;  // torchrun's TORCHELASTIC_USE_AGENT_STORE: rank 0 is a client too
  WorldSource source = WorldSource::kSingle;

  [[nodiscard]] bool distributed() const { return assignment.world_size > 1; }
};

// The world of a worker without an agent. (The source is never kAgent: with an agent the world comes from the
// assignment.) Empty variables count as unset. Errors (kInvalid): RANK without WORLD_SIZE or the other way round, rank
// not below world size, an invalid number or port, --local_rank that contradicts LOCAL_RANK, --nproc above 1 without a
// launcher that started the ranks, --ddp when nothing says how many ranks there are, anything missing for several
// nodes, a rank or a number of nodes of a launcher that is not read; each names the variables, what was found and what
// to do. `host_name` is used only for the ordinal of a StatefulSet.
Result<World> derive_world(const Environment& environment, const std::string& host_name, const LaunchOptions& launch);

// What `lockstep run` checks before it starts anything: the contradictions of derive_world, and a launcher (torchrun,
// srun, mpirun) that has already started several of us, each of which would start all ranks again (the message says
// what to start instead), or a system that started one per node (Kubeflow Trainer, an Indexed Job) without --nnodes, so
// that each would train alone (it names the flags). `starts_program`: for `lockstep launch`, in the same way.
Status check_agent_environment(const Environment& environment, const LaunchOptions& launch,
                               bool starts_program = false);

// Which node an agent is, among how many, and where node 0's agent listens.
struct AgentPosition {
  int node_rank = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  int wanted_nodes = 1;          // min_nodes … max_nodes
  std::string coordinator_host;  // empty for a single node, and on node 0 when none was given
  int coordinator_port = kDefaultCoordinatorPort;

  [[nodiscard]] bool distributed() const { return max_nodes > 1; }
};

// The position of an agent that has passed check_agent_environment. The number of nodes: --nnodes, else
// LOCKSTEP_MIN_NODES, LOCKSTEP_MAX_NODES and LOCKSTEP_NUM_NODES (the wanted one). The node rank: as in derive_world;
// under srun and mpirun with one task per node the task's. The coordinator: --coordinator, else LOCKSTEP_COORDINATOR,
// else the first host of Slurm's list. Errors (kInvalid) name what is contradictory or missing.
Result<AgentPosition> derive_agent_position(const Environment& environment, const std::string& host_name,
                                            const LaunchOptions& launch);

// The hosts' names of a Slurm node list, "node[01-03,7],gpu9" → node01, node02, node03, node7, gpu9; at most `limit`.
// kInvalid when the brackets do not hold numbers.
Result<std::vector<std::string>> expand_slurm_nodelist(std::string_view text, size_t limit);

}  // namespace lockstep
