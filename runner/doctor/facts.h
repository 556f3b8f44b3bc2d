// The facts that `lockstep doctor` collects about a machine (collect.h), and the request for which it judges them
// (checks.h). Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/contract/cuda_architectures.h"
#include "runner/contract/worker_build.h"

namespace lockstep::doctor {

// How the machine is to be used.
struct Request {
  std::string dir = ".";         // folder for checkpoints
  std::string data;              // path of a data set; empty: none is checked
  std::optional<int> nproc;      // ranks on this node; nullopt: as `lockstep run` would choose
  int nnodes = 1;                // with more than one, the network is checked, too
  std::string coordinator_host;  // empty: not given
  int coordinator_port = 0;
  int status_port = 0;  // 0: none

  [[nodiscard]] bool several_nodes() const { return nnodes > 1 || !coordinator_host.empty(); }
};

struct WorkerFacts {
  std::string program;  // path; empty: not found
  std::string problem;  // why it is not found or does not start: the system's message
  std::optional<WorkerBuild> build;
  double start_seconds = 0;
};

struct GpuFacts {
  int index = 0;  // as NVML numbers them
  std::string name;
  ComputeCapability capability;
  uint64_t memory_bytes = 0;
  uint64_t memory_used_bytes = 0;
  bool is_split = false;                       // MIG is on, which divides the GPU
  std::optional<uint64_t> uncorrected_errors;  // of ECC, since the driver was loaded
};

struct DriverFacts {
  bool has_kernel_module = false;  // /proc/driver/nvidia
  bool has_device_files = false;   // /dev/nvidia0 …
  bool has_nvml = false;           // libnvidia-ml.so.1 was opened and started
  bool has_cuda = false;           // libcuda.so.1 was opened
  std::string problem;             // the error of a library that exists but does not work
  std::string version;             // "580.65.06"
  int cuda_version = 0;            // the newest CUDA version that it runs: 13000
  std::vector<GpuFacts> gpus;
  std::vector<int> visible;          // indices in `gpus` that CUDA_VISIBLE_DEVICES leaves; -1: a part of one (MIG)
  std::string cuda_visible_devices;  // as it is set
  bool is_restricted = false;        // CUDA_VISIBLE_DEVICES is set
  std::string nvidia_visible_devices;
};

struct MachineFacts {
  int cores = 1;                        // that this process may run on
  std::optional<double> cores_allowed;  // by the cgroup's quota
  std::string architecture;             // "x86_64"
  bool has_avx2 = false;
  uint64_t memory_bytes = 0;                  // available without swapping
  std::optional<uint64_t> memory_left_bytes;  // what the cgroup's limit leaves; nullopt: no limit
  std::optional<uint64_t> shm_bytes;          // size of /dev/shm; nullopt: it does not exist
  uint64_t shm_free_bytes = 0;
  uint64_t files_max = 0;  // RLIMIT_NOFILE, soft
  uint64_t files_hard_max = 0;
  std::optional<uint64_t> locked_max;    // RLIMIT_MEMLOCK, bytes; nullopt: unlimited
  std::optional<uint64_t> threads_left;  // the lower of what RLIMIT_NPROC and pids.max leave; nullopt: unlimited
  bool has_infiniband = false;
  int64_t now = 0;           // Unix seconds
  int64_t program_time = 0;  // Unix seconds: when this program was written to disk
  bool is_container = false;
  bool is_pod = false;
  std::string trainjob;  // in a pod of one: its name
};

inline constexpr int kTorchrunStorePort = 29500;

struct PortFacts {
  int port = 0;
  std::string problem;  // why no program can listen there; empty: the port is free
  std::string holder;   // "python3 (pid 123)"; empty: not known
};

enum class Reach { kUnasked, kOurs, kConnected, kRefused, kTimeout, kUnreachable };

struct NetworkFacts {
  std::vector<PortFacts> ports;
  std::string host_name;
  std::vector<std::string> host_addresses;  // what the name resolves to
  std::vector<std::string> own_addresses;   // of this machine's interfaces that are up
  std::vector<std::string> interfaces;
  std::string gloo_interface;  // GLOO_SOCKET_IFNAME
  std::string nccl_interface;  // NCCL_SOCKET_IFNAME
  std::vector<std::string> coordinator_addresses;
  Reach coordinator = Reach::kUnasked;
};

struct DiskFacts {
  std::string path;     // that was asked for
  std::string folder;   // that was examined: the path, or the nearest folder above it that exists
  std::string problem;  // why nothing can be written there; empty: it can
  uint64_t free_bytes = 0;
  std::string filesystem;       // "ext4", "nfs", "tmpfs" …
  double bytes_per_second = 0;  // of writes with fdatasync; 0: not measured
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
