// LaunchOptions: the flags that say who runs where. They change no maths and are not part of a run's identity.
// Threads: plain values.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

enum class DeviceChoice { kAuto, kCuda, kCpu };
enum class BackendChoice { kAuto, kNccl, kGloo };

// Who runs where. Changes no maths.
struct LaunchOptions {
  std::optional<int> nproc;        // --nproc, --nproc_per_node; unset = GPUs visible, else 1
  std::optional<bool> multi_gpu;   // --multi_gpu; explicit false = one rank
  std::optional<int> nnodes;       // --nnodes
  std::optional<int> node_rank;    // --node_rank
  std::string coordinator;         // --coordinator HOST:PORT
  std::string master_addr;         // --master_addr
  std::optional<int> master_port;  // --master_port
  std::optional<int> local_rank;   // --local_rank, must agree with LOCAL_RANK
  BackendChoice backend = BackendChoice::kAuto;
  DeviceChoice device = DeviceChoice::kAuto;
  int status_port = 8080;  // --status_port; 0 = no HTTP server
  int threads = 0;         // --threads per rank; 0 = cores / local ranks, at least 1
  int rendezvous_timeout_seconds = 300;
  int collective_timeout_seconds = 600;
  int max_restarts = 10;  // process rung of the ladder
};

}  // namespace lockstep
