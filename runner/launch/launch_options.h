// LaunchOptions: the flags that say who runs where. They change no maths and are not part of a run's identity.
// Threads: plain values.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

enum class DeviceChoice { kAuto, kCuda, kCpu };
enum class BackendChoice { kAuto, kNccl, kGloo };

struct LaunchOptions {
  std::optional<int> nproc;        // --nproc, --nproc_per_node; unset = GPUs visible, else 1
  std::optional<bool> multi_gpu;   // --multi_gpu; explicit false = one rank
  std::optional<int> nnodes;       // --nnodes N, or the MAX of --nnodes MIN:MAX
  std::optional<int> min_nodes;    // the MIN of --nnodes MIN:MAX
  std::optional<int> node_rank;    // --node_rank
  std::string coordinator;         // --coordinator HOST:PORT
  std::optional<int> local_nodes;  // --local_nodes: number of nodes on this machine, each with its own agent
  std::string master_addr;         // --master_addr
  std::optional<int> master_port;  // --master_port
  std::optional<int> local_rank;   // --local_rank, must agree with LOCAL_RANK
  bool ddp = false;                // --ddp: an error when nothing says how many ranks there are
  BackendChoice backend = BackendChoice::kAuto;
  DeviceChoice device = DeviceChoice::kAuto;
  int status_port = 8080;  // --status_port; 0 = no HTTP server
  int threads = 0;         // --threads per rank; 0 = cores / local ranks, at least 1
  int rendezvous_timeout_seconds = 300;
  int collective_timeout_seconds = 600;
  int rejoin_timeout_seconds = 30;    // wait for a lost node before going on with fewer
  int stall_timeout_seconds = 600;    // no sign of progress from a rank
  int heartbeat_timeout_seconds = 5;  // no sign of life from a node or a worker
  int max_restarts = 10;              // of workers by their agent, within an hour
  // Of `lockstep launch` alone: how long ranks that were asked to stop may take. Unset: see agent_start.cc.
  std::optional<int> stop_timeout_seconds;
};

}  // namespace lockstep
