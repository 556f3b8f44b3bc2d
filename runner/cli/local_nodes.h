// `lockstep run --local_nodes N`: several nodes on one machine, each an agent of its own, as on a cluster.
//
// Role: the parent process of the agents, in place of the operator. It starts them, relays their output, replaces one
// that ends (recovery/node_restarts decides), and forwards signals. The agents are killed if it dies.
// Threads: one event loop on the calling thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/agent/terminal.h"
#include "runner/base/environment.h"
#include "runner/base/file_system.h"

namespace lockstep {

struct LocalNodesOptions {
  std::vector<std::string> arguments;  // of `lockstep run`, or the flags of `lockstep launch`, as the user gave them
  std::vector<std::string> program;    // of `lockstep launch`; empty: `lockstep run`
  std::string command_line;            // the same as one line for a shell, for messages
  Environment environment;
  int nodes = 1;
  int min_nodes = 1;
  int nproc = 1;                  // ranks per node
  int cores = 1;                  // of this machine, shared by all ranks
  bool share_cores = true;        // --threads was not given
  std::vector<std::string> gpus;  // as in CUDA_VISIBLE_DEVICES; empty: none are used
  std::string warning;            // about the devices, printed once; empty: none
  int status_port = 0;            // of node 0, whose page shows the job; 0: none
  bool status_port_given = false;
  int max_restarts = 10;
  std::chrono::milliseconds heartbeat_timeout{5000};
  std::chrono::seconds stop_timeout{60};  // how long each agent waits for its workers to stop
  std::string termination_log;            // path for the termination message of the whole run; empty = none
  std::string control_folder;             // folder of the agents' control sockets; empty = none
  std::string run_folder;                 // where rank 0 writes checkpoints; empty: not known, for `lockstep launch`
  TerminalOptions terminal;
};

// The arguments and the environment of one agent.
struct NodeLaunch {
  std::vector<std::string> arguments;  // after the program's name
  Environment environment;
};
struct LocalNetwork {
  std::string coordinator_host;
  int coordinator_port = 0;
  std::string token;
};
// Flags that it adds come at the end, so that they win over the user's own. Pure.
NodeLaunch node_launch(const LocalNodesOptions& options, const LocalNetwork& network, int node, uint32_t attempt);

// The GPUs of node `node`: `nproc` for each node, or all of them for every node when there are too few (ranks then
// share them, which needs --backend gloo). Pure.
std::vector<std::string> gpus_of_node(const std::vector<std::string>& gpus, int nodes, int nproc, int node);

// Starts an agent in a process group of its own; it is killed when its parent ends. Returns its pid, or -1 and errno.
struct AgentDescriptors {
  int stdout_fd = -1;  // -1: the caller's
  int stderr_fd = -1;  // -1: the caller's
};
pid_t start_agent(const std::string& program, const NodeLaunch& launch, const AgentDescriptors& descriptors);

// Runs all nodes and returns the exit code of the run (contract/exit_code).
int run_local_nodes(FileSystem& fs, const LocalNodesOptions& options);

}  // namespace lockstep
