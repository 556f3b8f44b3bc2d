// `lockstep run --local_nodes N`: several nodes on one machine, each an agent of its own, as on a cluster.
//
// Role: the parent of the agents. It plays the operator: starts them, relays what they print, replaces one that ends
// (the decisions are recovery/node_ladder's), forwards signals. The agents die with it.
// Threads: one event loop on the calling thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/agent/terminal.h"
#include "runner/contract/world.h"

namespace lockstep {

struct LocalNodesOptions {
  std::vector<std::string> arguments;  // of `lockstep run`, as the user gave them
  std::string command_line;            // the same as one line for a shell, for the last words
  Environment environment;
  int nodes = 1;
  int min_nodes = 1;
  int nproc = 1;                  // ranks per node
  int cores = 1;                  // of this machine, shared by all ranks
  bool share_cores = true;        // --threads was not given
  std::vector<std::string> gpus;  // as in CUDA_VISIBLE_DEVICES; empty: none are used
  std::string warning;            // about the devices, said once; empty: none
  int status_port = 0;            // of node 0, which speaks for the job; 0: none
  bool status_port_given = false;
  int max_restarts = 10;
  std::chrono::milliseconds heartbeat_timeout{5000};
  std::chrono::seconds stop_timeout{60};  // that each agent gives its workers
  bool network_namespaces = false;
  std::string termination_log;  // of the whole; empty = none
  std::string control_folder;   // where the agents' control sockets lie; empty = none
  TerminalOptions terminal;
};

// What one agent is started with. Pure.
struct NodeLaunch {
  std::vector<std::string> arguments;  // after the program's name
  Environment environment;
};
struct LocalNetwork {
  std::string coordinator_host;
  int coordinator_port = 0;
  std::string token;
};
// Flags added at the end win over the user's own.
NodeLaunch node_launch(const LocalNodesOptions& options, const LocalNetwork& network, int node, uint32_t attempt);

// The GPUs of node `node` when each gets `nproc` of them; all of them when there are too few to go round (ranks then
// share them, which needs --backend gloo). Pure.
std::vector<std::string> gpus_of_node(const std::vector<std::string>& gpus, int nodes, int nproc, int node);

// Starts an agent in a process group of its own; it is killed when its parent ends. Its pid; -1: errno says why not.
struct AgentDescriptors {
  int stdout_fd = -1;     // -1: the caller's
  int stderr_fd = -1;     // -1: the caller's
  int namespace_fd = -1;  // its network; -1: the caller's
};
pid_t start_agent(const std::string& program, const NodeLaunch& launch, const AgentDescriptors& descriptors);

// Returns the exit code of the whole (contract/exit_code).
int run_local_nodes(const LocalNodesOptions& options);

}  // namespace lockstep
