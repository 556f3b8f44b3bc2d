// What `lockstep doctor` found on a machine, and what it was asked about. Plain values: checks.h judges them, the
// collectors (collect.h) fill them in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/cuda_architectures.h"
#include "runner/contract/worker_build.h"

namespace lockstep::doctor {

// What the machine is wanted for.
struct Request {
  std::string dir = ".";         // where checkpoints go
  std::string data;              // empty: not asked about
  std::optional<int> nproc;      // ranks on this node; unset: as `lockstep run` would choose
  int nnodes = 1;                // with more, the network matters
  std::string coordinator_host;  // empty: not given
  int coordinator_port = 0;
  int status_port = 0;  // 0: none
};

struct WorkerFacts {
  std::string program;  // path; empty: not found
  std::string problem;  // why it is not found or does not start, in the system's words
  std::optional<WorkerBuild> build;
  double start_seconds = 0;
};

struct GpuFacts {
  int index = 0;  // as NVML numbers them
  std::string name;
  ComputeCapability capability;
  uint64_t memory_bytes = 0;
  uint64_t memory_used_bytes = 0;
  bool is_split = false;                       // MIG is on
  std::optional<uint64_t> uncorrected_errors;  // of ECC, since the driver was loaded
};

struct DriverFacts {
  bool has_kernel_module = false;  // /proc/driver/nvidia
  bool has_device_files = false;   // /dev/nvidia0 …
  bool has_nvml = false;           // libnvidia-ml.so.1 was opened and started
  bool has_cuda = false;           // libcuda.so.1 was opened
  std::string problem;             // of a library that is there and does not work, in its own words
  std::string version;             // "580.65.06"
  int cuda_version = 0;            // the newest CUDA it runs, 13000
  std::vector<GpuFacts> gpus;
  std::vector<int> visible;          // of them, after CUDA_VISIBLE_DEVICES; -1: a part of one (MIG)
  std::string cuda_visible_devices;  // as it is set
  bool is_restricted = false;        // CUDA_VISIBLE_DEVICES is set
  std::string nvidia_visible_devices;
};

struct MachineFacts {
  int cores = 1;                        // this process may run on
  std::optional<double> cores_allowed;  // by the cgroup's quota
  std::string architecture;             // "x86_64"
  bool has_avx2 = false;
  uint64_t memory_bytes = 0;                  // that can be had without swapping
  std::optional<uint64_t> memory_left_bytes;  // below the cgroup's limit
  std::optional<uint64_t> shm_bytes;          // size of /dev/shm; none: it is not there
  uint64_t shm_free_bytes = 0;
  uint64_t files_max = 0;  // RLIMIT_NOFILE, soft
  uint64_t files_hard_max = 0;
  std::optional<uint64_t> locked_max;    // RLIMIT_MEMLOCK, bytes; none: unlimited
  std::optional<uint64_t> threads_left;  // of RLIMIT_NPROC or the cgroup's pids.max; none: unlimited
  bool has_infiniband = false;
  int64_t now = 0;           // seconds since 1970
  int64_t program_time = 0;  // when this program was written to disk
  bool is_container = false;
  bool is_pod = false;
};

struct PortFacts {
  int port = 0;
  std::string problem;  // why it cannot be listened on; empty: it can
  std::string holder;   // "python3 (pid 123)", where that can be seen
};

enum class Reach { kUnasked, kOurs, kConnected, kRefused, kTimeout, kUnreachable };

struct NetworkFacts {
  std::vector<PortFacts> ports;
  std::string host_name;
  std::vector<std::string> host_addresses;  // what the name resolves to
  std::vector<std::string> own_addresses;   // of the interfaces that are up
  std::vector<std::string> interfaces;
  std::string gloo_interface;  // GLOO_SOCKET_IFNAME
  std::string nccl_interface;  // NCCL_SOCKET_IFNAME
  std::vector<std::string> coordinator_addresses;
  Reach coordinator = Reach::kUnasked;
};

struct DiskFacts {
  std::string path;     // asked for
  std::string folder;   // that was looked at: the path, or the nearest folder above it that exists
  std::string problem;  // why nothing can be written there
  uint64_t free_bytes = 0;
  std::string filesystem;       // "ext4", "nfs", "tmpfs" …
  double bytes_per_second = 0;  // written and synced
};

struct DataFacts {
  std::string problem;  // why it cannot be read; empty: it can
  bool is_folder = false;
  uint64_t bytes = 0;  // of a file
};

struct Facts {
  std::string version;  // of lockstep
  Request request;
  WorkerFacts worker;
  DriverFacts driver;
  MachineFacts machine;
  NetworkFacts network;
  DiskFacts disk;
  DataFacts data;
};

}  // namespace lockstep::doctor
